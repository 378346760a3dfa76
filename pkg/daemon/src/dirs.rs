//! Directories of a node, and the settings that all its parts share.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::metrics::{MetricsArgs, MetricsListen};
use crate::{DATA_DIR, RUN_DIR};

/// The directories of a node, from the command line.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct DirArgs {
    /// Directory for persistent state
    #[arg(long, env = "WARREN_DATA_DIR", default_value = DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Directory for sockets and volatile state [default: /run/warren]
    #[arg(long, env = "WARREN_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// The flag for `data_dir` with a leading space, for suggested commands; empty for the default directory.
pub fn data_dir_flag(data_dir: &Path) -> String {
    match data_dir == Path::new(DATA_DIR) {
        true => String::new(),
        false => format!(" --data-dir {}", data_dir.display()),
    }
}

/// Section `[node]` of the settings: what holds for all parts of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct NodeSection {
    /// `None`: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<PathBuf>,
    /// `None`: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_listen: Option<MetricsListen>,
}

impl NodeSection {
    /// From the command line.
    pub fn from_args(dirs: &DirArgs, metrics: MetricsArgs) -> Self {
        Self { run_dir: dirs.run_dir.clone(), metrics_listen: metrics.metrics_listen }
    }

    /// These settings, and those of `old` where this one has none.
    #[must_use]
    pub fn or(self, old: Self) -> Self {
        Self {
            run_dir: self.run_dir.or(old.run_dir),
            metrics_listen: self.metrics_listen.or(old.metrics_listen),
        }
    }

    /// Directory for sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| PathBuf::from(RUN_DIR))
    }

    /// Address of the metrics listener.
    pub fn metrics_listen(&self) -> MetricsListen {
        self.metrics_listen.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_non_default_data_dir_is_shown() {
        assert_eq!(data_dir_flag(Path::new(DATA_DIR)), "");
        assert_eq!(data_dir_flag(Path::new("/d")), " --data-dir /d");
    }

    #[test]
    fn given_values_override_saved_ones() {
        let at = |text: &str| Some(text.parse().unwrap());
        let old = NodeSection { run_dir: Some("/old".into()), metrics_listen: at("none") };
        let dirs = DirArgs { data_dir: "/d".into(), run_dir: Some("/new".into()) };
        let given = NodeSection::from_args(&dirs, MetricsArgs::default()).or(old.clone());
        assert_eq!(given, NodeSection { run_dir: Some("/new".into()), ..old.clone() });
        let metrics = MetricsArgs { metrics_listen: at("127.0.0.1:1") };
        let dirs = DirArgs { run_dir: None, ..dirs };
        let printed = NodeSection::from_args(&dirs, metrics).or(old);
        assert_eq!(printed.metrics_listen(), "127.0.0.1:1".parse().unwrap());
        let text = toml::to_string(&printed).unwrap();
        assert_eq!(text, "run-dir = \"/old\"\nmetrics-listen = \"127.0.0.1:1\"\n");
        assert_eq!(NodeSection::default().metrics_listen(), MetricsListen::default());
    }
}
