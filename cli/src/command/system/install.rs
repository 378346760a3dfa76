//! `warren system install` and `uninstall`: the systemd unit of the node.

use std::io;
use std::path::{Path, PathBuf};

use warren_daemon::HostInfo;

use super::systemd::{self, Systemd};
use super::unit::{self, NodeUnit, UnsupportedPath};
use crate::args::{SystemInstallArgs, SystemUninstallArgs};
use crate::failure::{CommandError, ExitKind};
use crate::node::{self, StoredNode};
use crate::output;

/// Name of the unit.
const UNIT: &str = "warren.service";
const NOT_INSTALLED: &str = "the systemd unit was not installed";
const NOT_REMOVED: &str = "the systemd unit was not removed";

/// Writes the unit of this machine's node, and has systemd run it. Repeatable.
pub async fn install(args: SystemInstallArgs) -> Result<(), CommandError> {
    let SystemInstallArgs { mut dirs, no_start, unit } = args;
    // The unit has no working directory of the user.
    dirs.data_dir = absolute(&dirs.data_dir)?;
    dirs.run_dir = dirs.run_dir.as_deref().map(absolute).transpose()?;
    let stored =
        StoredNode::load(&dirs.data_dir, NOT_INSTALLED)?.ok_or_else(|| not_a_node(&dirs.data_dir))?;
    let run_dir = dirs.run_dir.filter(|given| *given != stored.node.run_dir());
    let program = running_program()?;
    let unit_text =
        NodeUnit { program, kind: stored.kind(), data_dir: dirs.data_dir.clone(), run_dir }.render();
    let text = unit_text.map_err(|UnsupportedPath(path)| {
        let why = format!("{path:?} has characters that a unit cannot have");
        CommandError::new(ExitKind::Usage, NOT_INSTALLED, why, "choose another path")
    })?;
    let node = node::running(&dirs.data_dir);
    match unit.unit_dir {
        Some(directory) => write_only(&directory, &text),
        None => {
            ensure_root(NOT_INSTALLED, "use sudo, or give --unit-dir DIR to only write the file")?;
            let done = install_with(&Systemd::default(), &text, node, !no_start).await?;
            output::print(&format!("{done}\n"))
        }
    }
}

/// Stops the unit and removes it. Repeatable.
pub async fn uninstall(args: SystemUninstallArgs) -> Result<(), CommandError> {
    let done = match args.unit.unit_dir {
        Some(directory) => remove_file(&directory.join(UNIT))?,
        None => {
            ensure_root(NOT_REMOVED, "use sudo")?;
            uninstall_with(&Systemd::default()).await?
        }
    };
    output::print(&format!("{done}\n"))
}

fn ensure_root(what: &str, hint: &str) -> Result<(), CommandError> {
    match HostInfo::detect()?.is_root {
        true => Ok(()),
        false => Err(CommandError::new(ExitKind::Denied, what, "units of the system belong to root", hint)),
    }
}

fn write_only(directory: &Path, text: &str) -> Result<(), CommandError> {
    let file = directory.join(UNIT);
    own_text(&file, NOT_INSTALLED)?;
    systemd::write(&file, text, NOT_INSTALLED)?;
    output::print(&format!("{}\n", file.display()))
}

/// Installs the unit with this text; `node` is a node that runs. Returns what was done.
async fn install_with(
    systemd: &Systemd,
    text: &str,
    node: Option<u32>,
    starts: bool,
) -> Result<String, CommandError> {
    if !systemd.runs() {
        let why = "systemd does not run on this machine";
        let hint = "start the node with your init system by `warren manager run` or `warren worker run`, or write only \
                    the unit file with --unit-dir DIR";
        return Err(CommandError::new(ExitKind::Failed, NOT_INSTALLED, why, hint));
    }
    let file = systemd.file(UNIT);
    let former = own_text(&file, NOT_INSTALLED)?;
    let main_process = match &former {
        Some(_) => systemd.main_process(UNIT, NOT_INSTALLED).await?,
        None => None,
    };
    if let Some(pid) = node.filter(|pid| starts && main_process != Some(*pid)) {
        let why = format!("the node runs already, as process {pid} outside of systemd");
        let hint = format!(
            "stop it with `kill {pid}` (its containers keep running) and repeat this, or give --no-start"
        );
        return Err(CommandError::new(ExitKind::Conflict, NOT_INSTALLED, why, hint));
    }
    let is_changed = former.as_deref() != Some(text);
    if is_changed {
        systemd::write(&file, text, NOT_INSTALLED)?;
        systemd.call(&["daemon-reload"], NOT_INSTALLED).await?;
    }
    systemd.call(&["enable", UNIT], NOT_INSTALLED).await?;
    if starts {
        systemd.call(&["start", UNIT], "the node was not started").await?;
    }
    Ok(match (main_process, is_changed) {
        (Some(_), true) => {
            format!(
                "{} was replaced; `systemctl restart warren` applies it, without a stop of containers",
                file.display()
            )
        }
        (Some(_), false) => format!("{UNIT} is installed already, and the node runs"),
        (None, _) if starts => {
            format!("{UNIT} is installed, and the node runs; its log is `journalctl --unit warren`")
        }
        (None, _) => format!("{UNIT} is installed; start the node with `systemctl start warren`"),
    })
}

async fn uninstall_with(systemd: &Systemd) -> Result<String, CommandError> {
    let file = systemd.file(UNIT);
    if own_text(&file, NOT_REMOVED)?.is_none() || !systemd.runs() {
        return remove_file(&file);
    }
    systemd.call(&["disable", "--now", UNIT], NOT_REMOVED).await?;
    let done = remove_file(&file)?;
    systemd.call(&["daemon-reload"], NOT_REMOVED).await?;
    Ok(format!("{done}; the containers of the node keep running until it is started and removes them"))
}

fn remove_file(file: &Path) -> Result<String, CommandError> {
    if own_text(file, NOT_REMOVED)?.is_none() {
        return Ok(format!("there is no {}", file.display()));
    }
    std::fs::remove_file(file).map_err(|error| unusable(file, NOT_REMOVED, &error))?;
    Ok(format!("removed {}", file.display()))
}

/// The text of a unit that an earlier `install` wrote; `None` without a file. Units of others are left alone.
fn own_text(file: &Path, what: &str) -> Result<Option<String>, CommandError> {
    match std::fs::read_to_string(file) {
        Ok(text) if unit::is_own(&text) => Ok(Some(text)),
        Ok(_) => {
            let why = format!("{} was not written by `warren system install`", file.display());
            Err(CommandError::new(
                ExitKind::Conflict,
                what,
                why,
                "remove the file first, if you do not need it",
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(file, what, &error)),
    }
}

fn unusable(file: &Path, what: &str, error: &io::Error) -> CommandError {
    let why = format!("{}: {error}", file.display());
    CommandError::new(ExitKind::Failed, what, why, "run it as root, and check the directory")
}

fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    std::path::absolute(path).map_err(|error| {
        CommandError::new(ExitKind::Usage, NOT_INSTALLED, format!("{}: {error}", path.display()), "")
    })
}

/// The file of this program.
fn running_program() -> Result<PathBuf, CommandError> {
    let hint = "install it, for example in /usr/local/bin, and run it from there";
    let failed = |why: String| CommandError::new(ExitKind::Failed, NOT_INSTALLED, why, hint);
    let path = std::env::current_exe()
        .map_err(|error| failed(format!("the path of this program is unknown: {error}")))?;
    match path.is_file() {
        true => Ok(path),
        false => Err(failed(format!("this program was replaced or removed: {}", path.display()))),
    }
}

fn not_a_node(data_dir: &Path) -> CommandError {
    let why = format!("{} has no node", data_dir.display());
    let hint = "create one with `warren manager init`, or join a cluster with `warren worker join HOST:PORT --token \
                TOKEN`; then stop it with ^C and repeat this";
    CommandError::new(ExitKind::NotFound, NOT_INSTALLED, why, hint)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;
    use crate::node::NodeKind;

    /// A systemd that records what it was asked.
    struct FakeSystemd {
        directory: TempDir,
        systemd: Systemd,
    }

    impl FakeSystemd {
        /// `main_pid` is the process of the unit; `script` runs in the fake `systemctl` as well.
        fn new(main_pid: u32, script: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            let systemctl = path("systemctl");
            let log = path("calls");
            let text = format!(
                "#!/bin/sh\necho \"$*\" >> {}\n[ \"$1\" = show ] && echo {main_pid}\n{script}\nexit 0\n",
                log.display()
            );
            // Written by another process: one of this, between fork and exec, may have it open for writing.
            let installed = std::process::Command::new("sh")
                .args(["-c", "printf %s \"$TEXT\" > \"$FILE\""])
                .env("TEXT", text)
                .env("FILE", &systemctl)
                .status()
                .unwrap();
            assert!(installed.success());
            std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).unwrap();
            let systemd = Systemd { unit_dir: path(""), marker: directory.path().to_owned(), systemctl };
            Self { directory, systemd }
        }

        /// The calls since the last time.
        fn calls(&self) -> Vec<String> {
            let log = self.directory.path().join("calls");
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let _ = std::fs::remove_file(&log);
            text.lines().map(str::to_owned).collect()
        }

        fn unit(&self) -> Option<String> {
            std::fs::read_to_string(self.systemd.file(UNIT)).ok()
        }
    }

    fn unit_text(data_dir: &str) -> String {
        let unit = NodeUnit {
            program: "/usr/bin/warren".into(),
            kind: NodeKind::Hybrid,
            data_dir: data_dir.into(),
            run_dir: None,
        };
        unit.render().unwrap()
    }

    #[tokio::test]
    async fn unit_is_installed_started_and_removed_and_again() {
        let fake = FakeSystemd::new(7, "");
        let text = unit_text("/d");
        let done = install_with(&fake.systemd, &text, None, true).await.unwrap();
        assert!(done.contains("is installed, and the node runs"), "{done}");
        assert_eq!(fake.unit().as_deref(), Some(text.as_str()));
        assert_eq!(fake.calls(), ["daemon-reload", "enable warren.service", "start warren.service"]);
        // Again, while the node of the unit runs.
        let done = install_with(&fake.systemd, &text, Some(7), true).await.unwrap();
        assert!(done.contains("installed already"), "{done}");
        assert_eq!(fake.calls()[1..], ["enable warren.service", "start warren.service"]);
        // With other settings.
        let done = install_with(&fake.systemd, &unit_text("/e"), Some(7), true).await.unwrap();
        assert!(done.contains("systemctl restart warren"), "{done}");
        assert_eq!(fake.unit(), Some(unit_text("/e")));
        fake.calls();
        let done = uninstall_with(&fake.systemd).await.unwrap();
        assert!(done.starts_with("removed ") && done.contains("keep running"), "{done}");
        assert_eq!(fake.calls(), ["disable --now warren.service", "daemon-reload"]);
        assert_eq!(fake.unit(), None);
        let done = uninstall_with(&fake.systemd).await.unwrap();
        assert!(done.starts_with("there is no "), "{done}");
        assert_eq!(fake.calls(), [""; 0]);
    }

    #[tokio::test]
    async fn node_that_runs_by_hand_is_not_started_again() {
        let fake = FakeSystemd::new(0, "");
        let error = install_with(&fake.systemd, &unit_text("/d"), Some(42), true).await.unwrap_err();
        assert_eq!(error.kind, ExitKind::Conflict);
        assert!(error.why.contains("42") && error.hint.contains("--no-start"), "{error}");
        assert_eq!((fake.unit(), fake.calls()), (None, Vec::new()));
        let done = install_with(&fake.systemd, &unit_text("/d"), Some(42), false).await.unwrap();
        assert!(done.contains("systemctl start warren"), "{done}");
        assert_eq!(fake.calls(), ["daemon-reload", "enable warren.service"]);
    }

    #[tokio::test]
    async fn unit_of_somebody_else_is_left_alone() {
        let fake = FakeSystemd::new(0, "");
        std::fs::write(fake.systemd.file(UNIT), "[Unit]\n").unwrap();
        let error = install_with(&fake.systemd, &unit_text("/d"), None, true).await.unwrap_err();
        assert!(error.kind == ExitKind::Conflict && error.why.contains("was not written by"), "{error}");
        assert_eq!(uninstall_with(&fake.systemd).await.unwrap_err().kind, ExitKind::Conflict);
        assert_eq!((fake.unit().as_deref(), fake.calls()), (Some("[Unit]\n"), Vec::new()));
    }

    #[tokio::test]
    async fn failure_of_systemd_is_reported() {
        let fake = FakeSystemd::new(0, "[ \"$1\" = start ] && { echo 'no such thing' >&2; exit 1; }");
        let error = install_with(&fake.systemd, &unit_text("/d"), None, true).await.unwrap_err();
        assert_eq!(error.what, "the node was not started");
        assert!(error.why.contains("`systemctl start warren.service` failed: no such thing"), "{error}");
        let without = Systemd { marker: "/no/such/directory".into(), ..fake.systemd.clone() };
        let error = install_with(&without, &unit_text("/d"), None, true).await.unwrap_err();
        assert!(error.why.contains("systemd does not run") && error.hint.contains("--unit-dir"), "{error}");
        // A leftover of another init system can still be removed.
        assert!(uninstall_with(&without).await.unwrap().starts_with("removed "));
    }
}
