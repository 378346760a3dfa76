//! Classifies a failed creation of a process: the command, a field of the spec, or neither.
//!
//! runc and crun report no codes for this, only messages.

use std::path::Path;

use tonic::Status;
use warren_image::CallError;

use crate::container::{ContainerMountSource, ContainerSpec};
use crate::error::Error;

/// The error of a failed process creation: recognizes messages of runc and crun about a command that cannot
/// be executed and about unsupported fields.
pub(super) fn create_error(spec: &ContainerSpec, command: &str, status: &Status) -> Error {
    let message = status.message();
    if CallError::from_status(status) == CallError::Other {
        if let Some(reason) = exec_error(message) {
            return Error::CommandNotFound { command: command.to_owned(), reason };
        }
        if let Some(field) = field_at_fault(spec, message) {
            let reason = mount_conflict(spec, message).unwrap_or_else(|| root_cause(message).to_owned());
            return Error::invalid_field(field, reason);
        }
    }
    Error::from_status(format!("create the process of container {}", spec.id), status)
}

/// The field that the message is about, if any.
fn field_at_fault(spec: &ContainerSpec, message: &str) -> Option<String> {
    // The file that runc writes, and the message of its own check.
    let sysctl = |key: &&String| {
        message.contains(&format!("/proc/sys/{}:", key.replace('.', "/")))
            || message.contains(&format!("sysctl {key:?} "))
    };
    if let Some(key) = spec.sysctls.keys().find(sysctl) {
        return Some(format!("sysctls[{key:?}]"));
    }
    if message.contains("error mounting") {
        return mount_at_fault(spec, message).map(|place| format!("mounts[{place}]"));
    }
    let about = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if !spec.ulimits.is_empty() && about(&["rlimit"]) {
        return Some("ulimits".to_owned());
    }
    let made = |dir: &String| about(&["chdir to cwd", &format!("mkdir {}: ", dir.trim_end_matches('/'))]);
    spec.workdir.as_ref().filter(|dir| made(dir)).map(|_| "workdir".to_owned())
}

/// The place of the mount that the message is about.
fn mount_at_fault(spec: &ContainerSpec, message: &str) -> Option<usize> {
    let at = |target: &Path| message.contains(&format!("to rootfs at {target:?}"));
    spec.mounts.iter().position(|mount| at(&mount.target))
}

/// A sentence for a mount of a file over a directory of the image, or the other way round.
fn mount_conflict(spec: &ContainerSpec, message: &str) -> Option<String> {
    let lower = message.to_lowercase();
    let is_conflict = lower.contains("not a directory") || lower.contains("is a directory");
    let mount = spec.mounts.get(mount_at_fault(spec, message).filter(|_| is_conflict)?)?;
    let target = mount.target.display();
    let is_file = match &mount.source {
        ContainerMountSource::File { .. } => true,
        ContainerMountSource::Bind { path, .. } => path.is_file(),
        ContainerMountSource::Tmpfs { .. } => false,
    };
    Some(match is_file {
        true => format!(
            "the image has a directory at {target}, and a file cannot be mounted over it; give the path of a file, \
             like {target}/NAME"
        ),
        false => format!(
            "the image has a file at {target} or above it, and a directory cannot be mounted over it; choose \
             another path"
        ),
    })
}

/// The last part of a chain of messages, which has the cause.
fn root_cause(message: &str) -> &str {
    const CHAIN: [&str; 3] = ["error during container init: ", "container process: ", "runc create failed: "];
    let message = message.trim_end_matches(": unknown");
    CHAIN.iter().find_map(|link| Some(message.split_once(link)?.1)).unwrap_or(message)
}

/// The part of a runtime's message that says why a command cannot be executed, if the message is about that.
///
/// runc: `... unable to start container process: exec: "/x": stat /x: no such file or directory: unknown`.
/// crun: `... executable file `/x` not found: No such file or directory: unknown` or `... open executable:
/// ...`.
pub(super) fn exec_error(message: &str) -> Option<String> {
    let start = ["exec: \"", "executable file `", "open executable: "]
        .iter()
        .filter_map(|marker| message.find(marker))
        .min()?;
    let output = message[start..].trim_end_matches(": unknown");
    let text = match output.strip_prefix("exec: \"") {
        // What follows the quoted command.
        Some(rest) => rest.split_once("\": ").map_or(rest, |(_, reason)| reason),
        None => output,
    };
    const REASONS: [&str; 6] = [
        "not found",
        "no such file",
        "permission denied",
        "is a directory",
        "not a directory",
        "exec format error",
    ];
    let lower = text.to_lowercase();
    REASONS.iter().any(|reason| lower.contains(reason)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use warren_types::Bytes;

    use super::*;
    use crate::container::{ContainerMount, ContainerUlimit};
    use crate::spec::fixtures::spec;

    const RUNC: &str = "failed to create shim task: OCI runtime create failed: runc create failed: \
                        unable to start container process: ";

    #[test]
    fn exec_errors_are_distinguished() {
        for (message, want) in [
            (
                format!("{RUNC}exec: \"/nope\": stat /nope: no such file or directory: unknown"),
                Some("stat /nope: no such file or directory"),
            ),
            (
                format!("{RUNC}exec: \"nope\": executable file not found in $PATH: unknown"),
                Some("executable file not found in $PATH"),
            ),
            (format!("{RUNC}exec: \"/etc\": is a directory: unknown"), Some("is a directory")),
            (format!("{RUNC}exec: \"/etc/passwd\": permission denied: unknown"), Some("permission denied")),
            (
                "OCI runtime create failed: executable file `/x` not found: No such file or directory"
                    .to_owned(),
                Some("executable file `/x` not found: No such file or directory"),
            ),
            (format!("{RUNC}error mounting \"/x\" to rootfs at \"/y\": no such file or directory"), None),
            ("failed to mount rootfs component: no such file or directory".to_owned(), None),
        ] {
            assert_eq!(exec_error(&message).as_deref(), want, "{message}");
        }
    }

    #[test]
    fn mount_conflict_is_a_sentence() {
        let mount = |target: &str, source| ContainerMount { target: target.into(), source, read_only: true };
        let tmpfs = ContainerMountSource::Tmpfs { size: None, mode: None, options: Vec::new() };
        let asked = ContainerSpec {
            mounts: vec![
                mount("/app", ContainerMountSource::File { path: "/run/c/web".into() }),
                mount("/etc/passwd", tmpfs),
            ],
            ..spec()
        };
        for (target, field, want) in [
            ("/app", "mounts[0]", "the image has a directory at /app, and a file cannot be mounted over it"),
            ("/etc/passwd", "mounts[1]", "the image has a file at /etc/passwd or above it"),
        ] {
            let words = format!(
                "{RUNC}error during container init: error mounting \"/run/c/web\" to rootfs at {target:?}: mount \
                 /run/c/web:{target} (via /proc/self/fd/6), flags: 0x5001: not a directory: unknown"
            );
            let error = create_error(&asked, "/x", &Status::unknown(words));
            let Error::InvalidSpec { field: found, reason } = error else { panic!("{error:?}") };
            assert_eq!(found, field);
            assert!(reason.starts_with(want) && !reason.contains("rootfs"), "{reason}");
        }
    }

    #[test]
    fn runtime_error_is_mapped_to_field() {
        let asked = ContainerSpec {
            sysctls: [("net.ipv4.nope".to_owned(), "1".to_owned())].into(),
            ulimits: vec![ContainerUlimit { name: "core".into(), soft: 1, hard: 1 }],
            workdir: Some("/etc/passwd".into()),
            mounts: vec![ContainerMount {
                target: "/etc/data".into(),
                source: ContainerMountSource::Tmpfs {
                    size: Some(Bytes(4096)),
                    mode: None,
                    options: Vec::new(),
                },
                read_only: false,
            }],
            ..spec()
        };
        let init = format!("{RUNC}error during container init: ");
        for (words, want) in [
            ("open /proc/sys/net/ipv4/nope: no such file or directory", Some("sysctls[\"net.ipv4.nope\"]")),
            ("error mounting \"tmpfs\" to rootfs at \"/etc/data\": no space left", Some("mounts[0]")),
            ("error mounting \"/x\" to rootfs at \"/etc/hosts\": not a directory", None),
            ("error setting rlimits for ready process: operation not permitted", Some("ulimits")),
            ("chdir to cwd (\"/etc/passwd\") set in config.json failed: not a directory", Some("workdir")),
            ("mkdir /etc/passwd: not a directory", Some("workdir")),
            ("device busy", None),
        ] {
            let error = create_error(&asked, "/x", &Status::unknown(format!("{init}{words}: unknown")));
            match (&error, want) {
                (Error::InvalidSpec { field, reason }, Some(want)) => {
                    assert_eq!((field.as_str(), reason.as_str()), (want, words));
                }
                (Error::Failed { .. }, None) => assert!(error.is_transient()),
                other => panic!("{words}: {other:?}"),
            }
            let plain = create_error(&spec(), "/x", &Status::unknown(format!("{init}{words}: unknown")));
            assert!(matches!(plain, Error::Failed { .. }), "not configured: {plain}");
        }
    }
}
