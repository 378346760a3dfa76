//! Starts a program that outlives this process and its terminal.
//!
//! `unsafe` because code between fork and exec must be async-signal-safe; the two system calls here are.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, setrlimit};

use crate::open_files;

/// Runs the program in its own session: no hang-up or interrupt of a terminal reaches it. Its limit of open files is
/// the one that this process had at its start.
pub(super) fn into_own_session(command: &mut Command) {
    let open_files = open_files::inherited();
    // SAFETY: setsid(2) and setrlimit(2) are async-signal-safe and touch no memory.
    unsafe {
        command.pre_exec(move || {
            if let Some((soft, hard)) = open_files {
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            }
            nix::unistd::setsid().map(|_| ()).map_err(Into::into)
        });
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::getrlimit;

    use super::*;

    #[test]
    fn started_program_has_the_limit_of_before() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // Enough for other tests.
        setrlimit(Resource::RLIMIT_NOFILE, hard - 1, hard).unwrap();
        for _ in 0..2 {
            crate::raise_open_files_limit();
        }
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        let mut command = Command::new("sh");
        into_own_session(command.args(["-c", "ulimit -Sn; ulimit -Hn"]));
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n{hard}\n", hard - 1));
    }
}
