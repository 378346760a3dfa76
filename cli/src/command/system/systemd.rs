//! The systemd of this machine, through `systemctl`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::failure::{CommandError, ExitKind};

/// Longer than the unit allows for the start of a node.
const DEADLINE: Duration = Duration::from_secs(11 * 60);

/// Where systemd is found; another place in tests.
#[derive(Debug, Clone)]
pub struct Systemd {
    /// Directory of the administrator's units.
    pub unit_dir: PathBuf,
    /// Exists while systemd runs (sd_booted(3)).
    pub marker: PathBuf,
    /// The program.
    pub systemctl: PathBuf,
}

impl Default for Systemd {
    fn default() -> Self {
        Self {
            unit_dir: "/etc/systemd/system".into(),
            marker: "/run/systemd/system".into(),
            systemctl: "systemctl".into(),
        }
    }
}

impl Systemd {
    /// Whether systemd is the init system that runs.
    pub fn runs(&self) -> bool {
        self.marker.is_dir()
    }

    /// Path of a unit's file.
    pub fn file(&self, unit: &str) -> PathBuf {
        self.unit_dir.join(unit)
    }

    /// Runs `systemctl` and returns its output; `what` is the failure summary.
    pub async fn call(&self, arguments: &[&str], what: &str) -> Result<String, CommandError> {
        let line = format!("systemctl {}", arguments.join(" "));
        let failed = |why: String| {
            let hint = "see `systemctl status warren` and `journalctl --unit warren`";
            CommandError::new(ExitKind::Failed, what, format!("`{line}` failed: {why}"), hint)
        };
        let mut command = Command::new(&self.systemctl);
        command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(DEADLINE, command.output()).await;
        let output = output.map_err(|_| failed(format!("it did not end within {DEADLINE:?}")))?;
        let output = output.map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    /// The main process of a unit, if it runs.
    pub async fn main_process(&self, unit: &str, what: &str) -> Result<Option<u32>, CommandError> {
        let shown = self.call(&["show", "--property=MainPID", "--value", unit], what).await?;
        Ok(shown.trim().parse().ok().filter(|pid| *pid != 0))
    }
}

/// Replaces the file in one step, with a text that everybody may read.
pub fn write(file: &Path, text: &str, what: &str) -> Result<(), CommandError> {
    let failed = |error: std::io::Error| {
        let why = format!("cannot write {}: {error}", file.display());
        CommandError::new(ExitKind::Failed, what, why, "run it as root, or choose another --unit-dir")
    };
    // systemd ignores files with other endings.
    let temporary = file.with_extension("service.tmp");
    std::fs::write(&temporary, text).map_err(failed)?;
    std::fs::rename(&temporary, file).map_err(failed)
}
