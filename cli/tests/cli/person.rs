//! Somebody at a shell: a home directory, a contexts file, and the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::fake::Manager;

/// Somebody who knows one manager.
pub struct Person {
    home: TempDir,
    pub manager: Manager,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Person {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let manager = Manager::serve(&home.path().join("warren.sock"));
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

    pub fn warren(&self, arguments: &[&str]) -> Ran {
        self.warren_with(arguments, b"")
    }

    /// As `warren`, with something on standard input.
    pub fn warren_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        run(self.home.path(), arguments, input)
    }

    /// A command that goes on by itself, with nothing on its standard input.
    pub fn start(&self, arguments: &[&str]) -> Child {
        let mut child = start(self.home.path(), arguments);
        drop(child.stdin.take());
        child
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

fn start(home: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_warren"))
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("WARREN_CONTEXTS", home.join("contexts.toml"))
        .env("WARREN_RUN_DIR", home.join("run"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run(home: &Path, arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = start(home, arguments);
    // A program that does not read its input may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
