//! Somebody at a shell: a home directory, a contexts file, and the program.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::termios::{LocalFlags, tcgetattr};
use tempfile::TempDir;

use crate::fake_manager::FakeCliManager;

/// Somebody who knows one manager.
pub struct CliUser {
    home: TempDir,
    pub manager: FakeCliManager,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct CliResult {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// What was seen by somebody who typed at a terminal.
#[derive(Debug)]
pub struct TerminalSession {
    pub code: i32,
    /// Everything that the terminal showed.
    pub screen: String,
    /// It shows again what is typed.
    pub is_echo_on: bool,
}

/// A program at a terminal; it is ended when this is dropped.
pub struct TerminalProcess {
    child: Child,
    /// The other side of the terminal.
    screen: File,
    seen: Vec<u8>,
}

impl TerminalProcess {
    /// Reads what it shows, until that is among it.
    #[track_caller]
    pub fn read_until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            assert!(self.read(), "{text:?} never came: {:?}", String::from_utf8_lossy(&self.seen));
        }
    }

    /// Whether there was more. A terminal whose program has ended fails on Linux.
    fn read(&mut self) -> bool {
        let mut piece = [0; 1024];
        let read = self.screen.read(&mut piece).unwrap_or(0);
        self.seen.extend_from_slice(&piece[..read]);
        read > 0
    }
}

impl Drop for TerminalProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CliUser {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let manager = FakeCliManager::serve(&home.path().join("warren.sock"));
        let person = Self { home, manager };
        let socket = person.home.path().join("warren.sock");
        person.write_contexts(&format!(
            "current = \"here\"\n[[contexts]]\nname = \"here\"\nsocket = {socket:?}\n\
             [[contexts]]\nname = \"gone\"\nsocket = \"/nowhere/s\"\n"
        ));
        person
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn write_contexts(&self, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.path("contexts.toml");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn warren(&self, arguments: &[&str]) -> CliResult {
        self.warren_with(arguments, b"")
    }

    /// As `warren`, with something on standard input.
    pub fn warren_with(&self, arguments: &[&str], input: &[u8]) -> CliResult {
        run(self.home.path(), arguments, input)
    }

    /// A command that goes on by itself, with nothing on its standard input.
    pub fn start(&self, arguments: &[&str]) -> Child {
        let mut child = start(self.home.path(), arguments);
        drop(child.stdin.take());
        child
    }

    /// A command whose inputs and outputs are a terminal of its own.
    pub fn watch_at_terminal(&self, arguments: &[&str]) -> TerminalProcess {
        let terminal = nix::pty::openpty(None, None).unwrap();
        let end = || Stdio::from(terminal.slave.try_clone().unwrap());
        let mut command = command(self.home.path(), arguments);
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        TerminalProcess { child, screen: terminal.master.into(), seen: Vec::new() }
    }

    /// Types `keys` when the command has asked `question`, and waits for its end.
    #[track_caller]
    pub fn type_to(&self, arguments: &[&str], question: &str, keys: &[u8]) -> TerminalSession {
        let mut at = self.watch_at_terminal(arguments);
        at.read_until(question);
        at.screen.write_all(keys).unwrap();
        while at.read() {}
        let code = at.child.wait().unwrap().code().unwrap();
        let echoes =
            tcgetattr(&at.screen).unwrap().local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON);
        TerminalSession {
            code,
            screen: String::from_utf8(std::mem::take(&mut at.seen)).unwrap(),
            is_echo_on: echoes,
        }
    }

    /// Its exit code and what it wrote to both outputs, whatever bytes that are.
    pub fn bytes(&self, arguments: &[&str]) -> (i32, Vec<u8>, Vec<u8>) {
        let output = self.start(arguments).wait_with_output().unwrap();
        (output.status.code().unwrap(), output.stdout, output.stderr)
    }

    /// What it printed; it must succeed.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.warren(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// What it said on stderr; it must end with this code and print nothing.
    #[track_caller]
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let ran = self.warren(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{arguments:?}: {ran:?}");
        ran.stderr
    }
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warren"));
    command.args(arguments).env_clear().env("HOME", home).env("TERM", "xterm");
    command.env("WARREN_CONTEXTS", home.join("contexts.toml")).env("WARREN_RUN_DIR", home.join("run"));
    command.env("WARREN_DATA_DIR", home.join("data"));
    command
}

fn start(home: &Path, arguments: &[&str]) -> Child {
    let mut command = command(home, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn run(home: &Path, arguments: &[&str], input: &[u8]) -> CliResult {
    let mut child = start(home, arguments);
    // A program that does not read its input may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CliResult {
        code: output.status.code().unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}
