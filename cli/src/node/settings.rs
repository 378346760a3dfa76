//! What `manager init` was told, kept beside what it made: `node.toml` in the data dir.

use std::io;
use std::path::{Path, PathBuf};

use warren_security::files;

use crate::args::Settings;
use crate::failure::{Exit, Failure};

const WHAT: &str = "the node was not started";

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join("node.toml")
}

/// What an earlier init was told; `None` where there was none.
pub fn load(data_dir: &Path) -> Result<Option<Settings>, Failure> {
    let file = file(data_dir);
    let failed = |why: String| {
        let why = format!("cannot read {}: {why}", file.display());
        Failure::new(Exit::Failed, WHAT, why, "correct the file, or choose another --data-dir")
    };
    match std::fs::read_to_string(&file) {
        Ok(text) => toml::from_str(&text).map(Some).map_err(|why| failed(why.to_string())),
        // A directory that is none is told by whoever opens it.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let why = format!("{} cannot be read by this user", file.display());
            Err(Failure::new(Exit::Denied, WHAT, why, "run it as root, or choose another --data-dir"))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Keeps what init was told, in place of what an earlier one was.
pub fn remember(data_dir: &Path, settings: &Settings) -> Result<(), Failure> {
    let failed = |why: String| {
        let why = format!("cannot write {}: {why}", file(data_dir).display());
        Failure::new(
            Exit::Failed,
            "the node's settings were not kept",
            why,
            "check the disk, then run init again",
        )
    };
    let text = toml::to_string(settings).map_err(|why| failed(why.to_string()))?;
    files::write_private(&file(data_dir), text.as_bytes()).map_err(|error| failed(chain(&error)))
}

/// What is said now counts, else what was said at init.
pub fn merge(
    remembered: Option<Settings>,
    said: Settings,
    create: bool,
    data_dir: &Path,
) -> Result<Settings, Failure> {
    let old = match remembered {
        Some(old) => old,
        None if create => return Ok(said),
        None => {
            let why = format!("{} holds no cluster", data_dir.display());
            return Err(Failure::new(Exit::NotFound, WHAT, why, "make one with `warren manager init`"));
        }
    };
    if !said.cluster_range.is_empty() && said.cluster_range != old.cluster_range {
        let list =
            |ranges: &[ipnet::Ipv4Net]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let made = if old.cluster_range.is_empty() {
            "the default range".to_owned()
        } else {
            list(&old.cluster_range)
        };
        let why = format!(
            "the cluster was made with {made}, and --cluster-range says {}",
            list(&said.cluster_range)
        );
        return Err(Failure::new(Exit::Conflict, WHAT, why, "leave --cluster-range out"));
    }
    let (made, wanted) = (old.log_engine.unwrap_or_default(), said.log_engine);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != made) {
        let why = format!("the manager's log was made with {made}, and --log-engine says {wanted}");
        return Err(Failure::new(Exit::Conflict, WHAT, why, "leave --log-engine out"));
    }
    Ok(Settings {
        run_dir: said.run_dir.or(old.run_dir),
        listen: said.listen.or(old.listen),
        advertise: said.advertise.or(old.advertise),
        manager_only: said.manager_only.or(old.manager_only),
        cluster_range: old.cluster_range,
        containerd_socket: said.containerd_socket.or(old.containerd_socket),
        cpus: said.cpus.or(old.cpus),
        memory: said.memory.or(old.memory),
        node_name: said.node_name.or(old.node_name),
        log_engine: old.log_engine,
    })
}

/// An error and what caused it, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Many errors repeat their cause in their own words.
        if !text.contains(&inner_text) {
            text += &format!(": {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command, ManagerCommand};

    fn said(line: &[&str]) -> Settings {
        let cli = Cli::try_parse_from(["warren", "manager", "init"].iter().chain(line)).unwrap();
        match cli.command {
            Command::Manager(ManagerCommand::Init(args)) => args.settings,
            other => panic!("{other:?}"),
        }
    }

    fn all() -> Settings {
        said(&[
            "--run-dir=/r",
            "--listen=127.0.0.1:1",
            "--advertise=a:2",
            "--manager-only",
            "--cluster-range=10.1.0.0/16",
            "--cluster-range=10.2.0.0/16",
            "--containerd-socket=/c",
            "--cpus=1.5",
            "--memory=2GiB",
            "--node-name=n",
            "--log-engine=sled",
        ])
    }

    #[test]
    fn what_is_remembered_is_what_was_said_also_twice() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        for settings in [all(), Settings::default(), all(), all()] {
            remember(dir.path(), &settings).unwrap();
            assert_eq!(load(dir.path()).unwrap(), Some(settings));
        }
        let text = std::fs::read_to_string(file(dir.path())).unwrap();
        insta::assert_snapshot!(text, @r#"
        run-dir = "/r"
        listen = "127.0.0.1:1"
        advertise = "a:2"
        manager-only = true
        cluster-range = ["10.1.0.0/16", "10.2.0.0/16"]
        containerd-socket = "/c"
        cpus = "1.5"
        memory = "2GiB"
        node-name = "n"
        log-engine = "sled"
        "#);
    }

    #[test]
    fn what_is_said_now_wins_and_the_rest_stays() {
        let dir = Path::new("/d");
        assert_eq!(merge(Some(all()), Settings::default(), false, dir).unwrap(), all());
        let now = said(&[
            "--listen=127.0.0.1:9",
            "--manager-only=false",
            "--cluster-range=10.1.0.0/16,10.2.0.0/16",
        ]);
        let merged = merge(Some(all()), now, true, dir).unwrap();
        let wanted =
            Settings { listen: Some("127.0.0.1:9".parse().unwrap()), manager_only: Some(false), ..all() };
        assert_eq!(merged, wanted);
        assert_eq!(merge(None, all(), true, dir).unwrap(), all());
    }

    #[test]
    fn a_cluster_that_is_not_there_or_has_other_ranges_is_refused() {
        let failure = merge(None, all(), false, Path::new("/d")).unwrap_err();
        assert_eq!((failure.exit, failure.why.as_str()), (Exit::NotFound, "/d holds no cluster"));
        let other = said(&["--cluster-range=10.3.0.0/16"]);
        let failure = merge(Some(all()), other.clone(), true, Path::new("/d")).unwrap_err();
        let why = "the cluster was made with 10.1.0.0/16,10.2.0.0/16, and --cluster-range says 10.3.0.0/16";
        assert_eq!((failure.exit, failure.why.as_str()), (Exit::Conflict, why));
        assert!(merge(Some(Settings::default()), other, true, Path::new("/d")).is_err());
    }

    #[test]
    fn another_log_engine_is_refused() {
        let merge = |old: Settings, line: &[&str]| merge(Some(old), said(line), true, Path::new("/d"));
        assert_eq!(merge(all(), &["--log-engine=sled"]).unwrap(), all());
        assert_eq!(merge(Settings::default(), &["--log-engine=redb"]).unwrap(), Settings::default());
        for (old, now, why) in [
            (all(), "--log-engine=redb", "the manager's log was made with sled, and --log-engine says redb"),
            (
                Settings::default(),
                "--log-engine=sled",
                "the manager's log was made with redb, and --log-engine says sled",
            ),
        ] {
            let failure = merge(old, &[now]).unwrap_err();
            assert_eq!((failure.exit, failure.why.as_str()), (Exit::Conflict, why));
        }
    }

    #[test]
    fn a_damaged_file_is_told_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(file(dir.path()), "listen = 5\n").unwrap();
        let failure = load(dir.path()).unwrap_err().to_string();
        assert!(failure.contains("node.toml") && failure.contains("line 1"), "{failure}");
    }
}
