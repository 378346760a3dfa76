//! Finding programs, and a running containerd of ours among the processes.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::configuration::Files;
use super::{Error, Process, detach};
use crate::pidfd::Pidfd;

/// Where distributions put these programs, also when a service's `PATH` is shorter.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The command that starts containerd, everything it needs in place.
pub(super) fn command(files: &Files, binary: Option<&Path>) -> Result<Command, Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let path = search_path();
    let found = |name: &Path| {
        search(name, &path).ok_or_else(|| Error::Missing { program: name.display().to_string() })
    };
    let containerd = found(binary.unwrap_or(Path::new("containerd")))?;
    found(Path::new("containerd-shim-runc-v2"))?;
    found(Path::new("runc"))?;
    let log = files.ensure()?;
    let unusable = |error: std::io::Error| Error::Path { path: files.log.clone(), reason: error.to_string() };
    let second = log.try_clone().map_err(unusable)?;
    let mut command = Command::new(containerd);
    command.arg("--config").arg(&files.configuration).current_dir("/");
    // Nothing of the agent's environment is meant for it, least of all systemd's notification socket.
    command.env_clear().env("PATH", path);
    command.stdin(Stdio::null()).stdout(Stdio::from(log)).stderr(Stdio::from(second));
    detach::into_own_session(&mut command);
    Ok(command)
}

fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(USUAL);
    path
}

fn search(name: &Path, path: &OsString) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    match name.components().count() {
        1 => env::split_paths(path).map(|folder| folder.join(name)).find(is_program),
        _ => Some(name.to_owned()).filter(is_program),
    }
}

/// The process that was started with this configuration file.
pub(super) fn find(configuration: &Path) -> Option<Process> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        // As long as the handle's process is alive afterwards, what was read in between is about it.
        let pidfd = Pidfd::open(pid).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0);
        let is_ours = words.any(|word| word == b"--config")
            && words.next().is_some_and(|word| word == configuration.as_os_str().as_bytes());
        (is_ours && pidfd.is_alive()).then_some(Process { pid, pidfd, child: None })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let path = search_path();
        assert!(search(Path::new("sh"), &path).is_some());
        assert!(search(Path::new("/bin/sh"), &path).is_some());
        for missing in ["no-such-program-here", "/etc/passwd", "/bin"] {
            assert!(search(Path::new(missing), &path).is_none(), "{missing}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("root"), &dir.path().join("state")).unwrap();
        let error = command(&files, Some(Path::new("/no/containerd"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/no/containerd") && text.contains("apt-get install"), "{text}");
        assert!(find(Path::new("/no/such/file.toml")).is_none());
    }
}
