//! Further processes of a running container, each with its own input and output.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use oci_spec::runtime as oci;
use tokio::io::{AsyncRead, AsyncWrite};
use warren_container_programs::plan::ExecPlan;
use warren_types::{IdRange, Signal};

use crate::Result;
use crate::error::Error;
use crate::spec::command::terminal_variable;
use crate::spec::identity;
use crate::spec::user::User;

/// A program to run, with the setup of the container's first process except as given here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// Program and arguments.
    pub command: Vec<String>,
    /// `NAME=value`, over the environment of the container.
    pub environment: Vec<String>,
    /// As in [`crate::ContainerSpec::user`]; `None`: that of the container.
    pub user: Option<String>,
    /// Absolute; `None`: that of the container.
    pub directory: Option<String>,
    /// It has an input; otherwise that is empty.
    pub input: bool,
    /// It has a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// Its standard error is its standard output, as with a terminal.
    pub combined: bool,
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerminalSize {
    /// Width.
    pub columns: u16,
    /// Height.
    pub rows: u16,
}

/// Open parts of a running container. They stay what they are after its end.
#[derive(Debug)]
pub struct ContainerHandles {
    /// Its root directory, with all of its mounts.
    pub root: OwnedFd,
    /// Its network namespace.
    pub network: OwnedFd,
    /// The ids of its users on the host; `None` without a user namespace of its own.
    pub ids: Option<IdRange>,
}

/// Input of a process.
pub type ExecInput = Box<dyn AsyncWrite + Send + Unpin>;
/// Output of a process. It ends when all processes that have it have closed it.
pub type ExecOutput = Box<dyn AsyncRead + Send + Unpin>;

/// A started program. If its handle is dropped before the program has ended, the program and the processes of its
/// session get SIGHUP, and SIGKILL two seconds later.
pub struct ExecProcess {
    /// Its input, if it has one. Dropping it and [`ExecHandle::close_input`] end the input.
    pub input: Option<ExecInput>,
    /// Standard output, or all output.
    pub stdout: ExecOutput,
    /// Standard error; `None` if it is the standard output.
    pub stderr: Option<ExecOutput>,
    /// Controls it.
    pub handle: Box<dyn ExecHandle>,
}

/// The first process of a container, for one client. It runs on without the client.
pub struct AttachedProcess {
    /// Its input, if the client asked for it. Dropping it leaves the input open for other clients;
    /// [`ExecHandle::close_input`] ends it, once the other clients have dropped theirs.
    pub input: Option<ExecInput>,
    /// Controls it.
    pub handle: Box<dyn ExecHandle>,
}

/// Controls a process.
#[async_trait]
pub trait ExecHandle: Send + Sync {
    /// Waits for the end; returns the exit code, 128 + n after signal n.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the container was removed.
    async fn wait(&self) -> Result<u32>;

    /// Ends the input; before that it must have been dropped. The first process of a container with a terminal has no
    /// end of input: nothing happens.
    ///
    /// # Errors
    /// The runtime does not answer.
    async fn close_input(&self) -> Result<()>;

    /// Changes the size of the terminal.
    ///
    /// # Errors
    /// The runtime does not answer.
    async fn resize(&self, size: TerminalSize) -> Result<()>;

    /// Sends a signal to the program; nothing after its end.
    fn signal(&self, signal: Signal);
}

impl ExecSpec {
    /// Checks what needs no container.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`].
    pub fn validate(&self) -> Result<()> {
        let has_nul = |text: &String| text.contains('\0');
        if self.command.first().is_none_or(String::is_empty) || self.command.iter().any(has_nul) {
            return Err(Error::invalid_field("command", "empty, or contains a NUL byte"));
        }
        let is_variable = |pair: &String| pair.find('=').is_some_and(|at| at > 0) && !has_nul(pair);
        if let Some(pair) = self.environment.iter().find(|pair| !is_variable(pair)) {
            return Err(Error::invalid_field("environment", format!("{pair:?} is not NAME=value")));
        }
        match &self.directory {
            Some(directory) if !directory.starts_with('/') || has_nul(directory) => {
                Err(Error::invalid_field("directory", format!("{directory:?} is not an absolute path")))
            }
            _ => Ok(()),
        }
    }

    /// The process, from the container's first one.
    pub(crate) fn document(&self, first: &oci::Process, user: Option<&User>) -> oci::Process {
        let mut process = first.clone();
        process
            .set_args(Some(self.command.clone()))
            .set_env(Some(self.environment(first.env().clone().unwrap_or_default())))
            .set_terminal(Some(self.terminal.is_some()))
            .set_console_size(self.terminal.and_then(|TerminalSize { columns, rows }| {
                oci::BoxBuilder::default().height(rows).width(columns).build().ok()
            }));
        if let Some(user) = user {
            process.set_user(identity(user));
        }
        if let Some(directory) = &self.directory {
            process.set_cwd(directory.into());
        }
        process
    }

    /// The plan without process and input, from that of the container's first process.
    pub(crate) fn plan(&self, first: &ExecPlan, user: Option<&User>) -> ExecPlan {
        let mut plan = ExecPlan {
            arguments: self.command.iter().map(|word| word.clone().into_bytes()).collect(),
            environment: self.environment(first.environment.clone()),
            ..first.clone()
        };
        if let Some(user) = user.map(identity) {
            let groups = user.additional_gids().clone().unwrap_or_default();
            (plan.uid, plan.gid, plan.groups) = (user.uid(), user.gid(), groups);
        }
        if let Some(directory) = &self.directory {
            plan.directory = directory.clone().into_bytes();
        }
        plan
    }

    /// The environment, from that of the container's first process.
    fn environment<T: AsRef<[u8]> + From<String>>(&self, mut all: Vec<T>) -> Vec<T> {
        let terminal = self.terminal.is_some().then(terminal_variable);
        let is_set = |pair: &String| all.iter().any(|known| name(known) == name(pair));
        let terminal = terminal.filter(|pair| !is_set(pair));
        for pair in terminal.iter().chain(&self.environment) {
            all.retain(|known| name(known) != name(pair));
            all.push(pair.clone().into());
        }
        all
    }
}

fn name(pair: &(impl AsRef<[u8]> + ?Sized)) -> &[u8] {
    pair.as_ref().split(|byte| *byte == b'=').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(command: &[&str]) -> ExecSpec {
        ExecSpec { command: command.iter().map(|&word| word.to_owned()).collect(), ..ExecSpec::default() }
    }

    #[test]
    fn process_differs_only_where_asked() {
        let mut first = oci::Process::default();
        first.set_env(Some(vec!["A=1".into(), "PATH=/bin".into()])).set_cwd("/srv".into());
        let plain = spec(&["sh", "-c", "x"]).document(&first, None);
        let mut expected = first.clone();
        expected.set_args(Some(vec!["sh".into(), "-c".into(), "x".into()])).set_terminal(Some(false));
        assert_eq!(plain, expected);

        let asked = ExecSpec {
            environment: vec!["A=2".into(), "B=x=y".into()],
            directory: Some("/tmp".into()),
            terminal: Some(TerminalSize { columns: 80, rows: 24 }),
            ..spec(&["sh"])
        };
        let user = User { uid: 5, gid: 6, groups: vec![7] };
        let process = asked.document(&first, Some(&user));
        assert_eq!(process.env().as_deref().unwrap(), ["PATH=/bin", "TERM=xterm", "A=2", "B=x=y"]);
        assert_eq!((process.user().uid(), process.user().gid()), (5, 6));
        assert_eq!(process.user().additional_gids().as_deref(), Some(&[6, 7][..]));
        let console = process.console_size().unwrap();
        assert_eq!((console.width(), console.height()), (80, 24));
        assert_eq!(process.cwd(), std::path::Path::new("/tmp"));
        // A terminal type that the container or the caller chose stays.
        first.set_env(Some(vec!["TERM=vt100".into()]));
        assert_eq!(asked.document(&first, None).env().as_ref().unwrap()[0], "TERM=vt100");
    }

    #[test]
    fn invalid_program_is_refused() {
        let environment = |pair: &str| ExecSpec { environment: vec![pair.into()], ..spec(&["sh"]) };
        let directory = ExecSpec { directory: Some("tmp".into()), ..spec(&["sh"]) };
        let all = [spec(&[]), spec(&[""]), spec(&["a\0"]), environment("A"), environment("=1"), directory];
        for wrong in all {
            assert!(matches!(wrong.validate(), Err(Error::InvalidSpec { .. })), "{wrong:?}");
        }
        assert!(environment("A=").validate().is_ok());
    }
}
