//! Where a node keeps what.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::metrics::{MetricsArgs, MetricsListen};
use crate::{DATA_DIR, RUN_DIR};

/// Where a node keeps what, as it is told.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct PlaceArgs {
    /// Holds everything that must survive
    #[arg(long, env = "WARREN_DATA_DIR", default_value = DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Holds sockets and what need not survive [default: /run/warren]
    #[arg(long, env = "WARREN_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// The flag that names `data_dir`, with a blank before it, for commands that people are told to type; empty where a
/// command uses it without being told.
pub fn data_dir_flag(data_dir: &Path) -> String {
    match data_dir == Path::new(DATA_DIR) {
        true => String::new(),
        false => format!(" --data-dir {}", data_dir.display()),
    }
}

/// What is remembered of a node as a whole: the section `[node]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct NodeSection {
    /// `None` is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_dir: Option<PathBuf>,
    /// `None` is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_listen: Option<MetricsListen>,
}

impl NodeSection {
    /// What is said of a node as a whole.
    pub fn said(place: &PlaceArgs, metrics: MetricsArgs) -> Self {
        Self { run_dir: place.run_dir.clone(), metrics_listen: metrics.metrics_listen }
    }

    /// What is said now counts, else what was said before.
    #[must_use]
    pub fn over(self, old: Self) -> Self {
        Self {
            run_dir: self.run_dir.or(old.run_dir),
            metrics_listen: self.metrics_listen.or(old.metrics_listen),
        }
    }

    /// The directory for sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| PathBuf::from(RUN_DIR))
    }

    /// Where metrics are served.
    pub fn metrics_listen(&self) -> MetricsListen {
        self.metrics_listen.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_data_dir_than_the_default_is_named() {
        assert_eq!(data_dir_flag(Path::new(DATA_DIR)), "");
        assert_eq!(data_dir_flag(Path::new("/d")), " --data-dir /d");
    }

    #[test]
    fn what_is_said_now_counts_and_the_rest_stays() {
        let at = |text: &str| Some(text.parse().unwrap());
        let old = NodeSection { run_dir: Some("/old".into()), metrics_listen: at("none") };
        let place = PlaceArgs { data_dir: "/d".into(), run_dir: Some("/new".into()) };
        let said = NodeSection::said(&place, MetricsArgs::default()).over(old.clone());
        assert_eq!(said, NodeSection { run_dir: Some("/new".into()), ..old.clone() });
        let metrics = MetricsArgs { metrics_listen: at("127.0.0.1:1") };
        let place = PlaceArgs { run_dir: None, ..place };
        let said = NodeSection::said(&place, metrics).over(old);
        assert_eq!(said.metrics_listen(), "127.0.0.1:1".parse().unwrap());
        let text = toml::to_string(&said).unwrap();
        assert_eq!(text, "run-dir = \"/old\"\nmetrics-listen = \"127.0.0.1:1\"\n");
        assert_eq!(NodeSection::default().metrics_listen(), MetricsListen::default());
    }
}
