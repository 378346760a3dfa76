//! Flags of `task exec` and `service exec`.

use clap::Args;

use super::value::{self, EnvVariable};

/// Notes at the end of `exec --help`.
pub const EXEC_NOTES: &str = "\
Options come before the task or service; all that follows it is the command.
The exit code is that of the command: 128 + N if signal N ended it, 127 if it does not exist, 126 if it cannot be \
executed. Other failures have the exit codes of all commands, 1 to 7.
The command ends with this program, by SIGHUP, and by SIGKILL 2 seconds later. With -it all keys go to the command; \
otherwise it gets the signals INT, TERM, HUP and QUIT of this program.";

#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Pass standard input on to the command
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal; standard input must be one
    #[arg(short, long)]
    pub tty: bool,
    /// Run as another user than the container [format: USER[:GROUP], names or numbers]
    #[allow(rustdoc::broken_intra_doc_links, reason = "the help has optional parts in brackets")]
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Set the working directory, an absolute path
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Set an environment variable; without a value it is taken from the environment of this command (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = value::variable)]
    pub env: Vec<EnvVariable>,
    /// Command and arguments; all that follows the command belongs to it
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Cli, CliCommand, ServiceCommand, TaskCommand};
    use super::*;

    fn parse(line: &str) -> Result<(String, ExecArgs), String> {
        let parsed = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        match parsed.command {
            CliCommand::Task(TaskCommand::Exec { task, exec }) => Ok((task, exec)),
            CliCommand::Service(ServiceCommand::Exec { service, slot, exec }) => {
                Ok((format!("{service} {slot:?}"), exec))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn arguments_of_the_command_are_unchanged() {
        for (line, expected) in [
            ("warren task exec web.1 ls", "ls"),
            ("warren task exec web.1 ls -it --user x -- -h", "ls -it --user x -- -h"),
            ("warren task exec web.1 -- sh -c x", "sh -c x"),
            ("warren task exec -it web.1 sh --help --version -o json", "sh --help --version -o json"),
        ] {
            let (task, exec) = parse(line).unwrap();
            assert_eq!((task.as_str(), exec.command.join(" ").as_str()), ("web.1", expected), "{line}");
        }
    }

    #[test]
    fn flags_come_before_the_task() {
        let (_, exec) = parse("warren task exec -it -u web:7 -w /srv -e A=1 -e B= web.1 sh").unwrap();
        assert!(exec.interactive && exec.tty);
        assert_eq!((exec.user.as_deref(), exec.workdir.as_deref()), (Some("web:7"), Some("/srv")));
        let env: Vec<_> = exec.env.iter().map(|one| (one.name.as_str(), one.value.as_deref())).collect();
        assert_eq!(env, [("A", Some("1")), ("B", Some(""))]);
        let (service, exec) = parse("warren service exec --slot 2 web env").unwrap();
        assert_eq!((service.as_str(), exec.interactive), ("web Some(2)", false));
        assert!(parse("warren task exec web.1").unwrap_err().contains("<COMMAND>"));
    }
}
