//! The command that starts the private containerd, and the search for its process.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::configuration::ContainerdPaths;
use super::{ContainerdProcess, Error, detach};
use crate::host_process::is_of_host_root;
use crate::pidfd::Pidfd;
use crate::programs;

const VERSION_DEADLINE: Duration = Duration::from_secs(3);

/// Builds the command and the files that it needs.
pub(super) fn command(files: &ContainerdPaths, binary: Option<&Path>) -> Result<Command, Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let (containerd, path) = find_program(binary)?;
    let log = files.ensure()?;
    let unusable = |error: std::io::Error| Error::Path { path: files.log.clone(), reason: error.to_string() };
    let second = log.try_clone().map_err(unusable)?;
    let mut command = Command::new(containerd);
    command.arg("--config").arg(&files.configuration).current_dir("/");
    // The agent's environment is not passed on, least of all systemd's notification socket.
    command.env_clear().env("PATH", path);
    command.stdin(Stdio::null()).stdout(Stdio::from(log)).stderr(Stdio::from(second));
    detach::into_own_session(&mut command);
    Ok(command)
}

/// The program, and the search path in which it and its shim were found.
fn find_program(binary: Option<&Path>) -> Result<(PathBuf, OsString), Error> {
    let path = programs::search_path();
    let found = |name: &Path| {
        programs::find(name, &path).ok_or_else(|| Error::Missing { program: name.display().to_string() })
    };
    let containerd = found(binary.unwrap_or(Path::new("containerd")))?;
    found(Path::new("containerd-shim-runc-v2"))?;
    Ok((containerd, path))
}

/// The version of the program that would be started: `1.6.20`.
pub(super) async fn version(binary: Option<&Path>) -> Result<String, Error> {
    let (containerd, _) = find_program(binary)?;
    let mut command = tokio::process::Command::new(&containerd);
    command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
    let unusable = |reason: String| Error::Path { path: containerd.clone(), reason };
    let output = tokio::time::timeout(VERSION_DEADLINE, command.output()).await;
    let output = output.map_err(|_| unusable(format!("no version within {VERSION_DEADLINE:?}")))?;
    let output = output.map_err(|error| unusable(error.to_string()))?;
    // `containerd PACKAGE VERSION COMMIT`
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().nth(2).filter(|_| output.status.success());
    version.map(str::to_owned).ok_or_else(|| unusable(format!("its version was {:?}", text.trim())))
}

/// The process of root, outside of containers, that was started with this configuration file.
pub(super) fn find(configuration: &Path) -> Option<ContainerdProcess> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        // If the handle's process is alive afterwards, what was read in between belongs to it.
        let pidfd = Pidfd::open(pid).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0);
        let is_ours = words.any(|word| word == b"--config")
            && words.next().is_some_and(|word| word == configuration.as_os_str().as_bytes());
        (is_ours && is_of_host_root(pid) && pidfd.is_alive()).then_some(ContainerdProcess {
            pid,
            pidfd,
            child: None,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::Child;

    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = ContainerdPaths::new(&dir.path().join("root"), &dir.path().join("state")).unwrap();
        let error = command(&files, Some(Path::new("/no/containerd"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/no/containerd") && text.contains("apt-get install"), "{text}");
        assert!(find(Path::new("/no/such/file.toml")).is_none());
    }

    /// A process with the arguments of a containerd, until its input is closed.
    fn imitation(configuration: &Path, by: &mut Command) -> Child {
        // The path is no argument of the shell that starts the imitation.
        let start = "sh -c 'echo; read end' containerd --config \"$FILE\"; true";
        by.args(["sh", "-c", start]).env("FILE", configuration).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = by.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    fn stop(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn processes_of_other_users_and_containers_are_not_containerd() {
        let dir = tempfile::tempdir().unwrap();
        let configuration = dir.path().join("containerd.toml");
        let of_root = imitation(&configuration, &mut Command::new("env"));
        let found = find(&configuration).expect("a process of root outside of containers is found");
        stop(of_root);
        assert!(!found.pidfd.is_alive());
        let of_nobody = imitation(&configuration, Command::new("env").uid(65534));
        assert!(find(&configuration).is_none(), "another user");
        stop(of_nobody);
        // Only what the outer shell starts is in the new namespace.
        let contained = imitation(&configuration, Command::new("unshare").arg("--pid"));
        assert!(find(&configuration).is_none(), "root of a container");
        stop(contained);
    }
}
