//! Reads from a terminal without echo, or with every key as it is.
//!
//! Ctrl-C is a key then, so that the mode of the terminal is restored in every case.

use std::io::{self, Read, Stdin, Write};

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use zeroize::{Zeroize, Zeroizing};

/// Key that ends the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    /// The Enter key.
    Enter,
    /// Ctrl-D; Enter is part of the input.
    End,
}

/// Writes the question to standard error and reads at most `most` bytes from standard input, which is a terminal.
///
/// # Errors
/// `Interrupted` for Ctrl-C, or an error of the terminal.
pub fn read_hidden(question: &str, until: InputEnd, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let _quiet = TerminalGuard::disable_echo()?;
    let mut stderr = io::stderr();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    let answer = read(super::stdin()?, until, most);
    // The final Enter was not echoed.
    stderr.write_all(b"\n")?;
    answer
}

fn read(mut keys: impl Read, until: InputEnd, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = LineEditor { bytes: Zeroizing::new(Vec::with_capacity(most)), until };
    let mut key = Zeroizing::new([0]);
    while line.bytes.len() < most {
        let step = match keys.read(&mut *key)? {
            0 => KeyResult::Done,
            _ => line.push_key(key[0]),
        };
        match step {
            KeyResult::Continue => {}
            KeyResult::Done => break,
            KeyResult::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
        }
    }
    Ok(line.bytes)
}

/// The input so far.
struct LineEditor {
    bytes: Zeroizing<Vec<u8>>,
    until: InputEnd,
}

#[derive(Debug, PartialEq, Eq)]
enum KeyResult {
    Continue,
    Done,
    Interrupted,
}

impl LineEditor {
    fn push_key(&mut self, key: u8) -> KeyResult {
        const CTRL_C: u8 = 3;
        const CTRL_D: u8 = 4;
        const CTRL_U: u8 = 21;
        const BACKSPACE: [u8; 2] = [8, 127];
        match key {
            CTRL_C => return KeyResult::Interrupted,
            CTRL_D => return KeyResult::Done,
            b'\r' | b'\n' if self.until == InputEnd::Enter => return KeyResult::Done,
            CTRL_U => self.truncate(self.start_of_line()),
            key if BACKSPACE.contains(&key) => self.truncate(self.last_character()),
            key => self.bytes.push(key),
        }
        KeyResult::Continue
    }

    fn truncate(&mut self, at: usize) {
        self.bytes[at..].zeroize();
        self.bytes.truncate(at);
    }

    fn start_of_line(&self) -> usize {
        self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
    }

    /// Start of the last UTF-8 character.
    fn last_character(&self) -> usize {
        let begins = |byte: &u8| byte & 0b1100_0000 != 0b1000_0000;
        self.bytes.iter().rposition(begins).unwrap_or(0).max(self.start_of_line())
    }
}

/// Changes the mode of the terminal that is standard input until dropped.
pub struct TerminalGuard {
    stdin: Stdin,
    original: Termios,
    /// When the original mode is restored.
    restored: SetArg,
}

impl TerminalGuard {
    /// Passes every key on unchanged, and every byte of the output.
    pub fn raw() -> io::Result<Self> {
        // What was typed before is input.
        Self::change(SetArg::TCSANOW, termios::cfmakeraw)
    }

    fn disable_echo() -> io::Result<Self> {
        let quiet = LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG | LocalFlags::IEXTEN;
        // Discards input that was typed, and shown, before.
        Self::change(SetArg::TCSAFLUSH, |mode| mode.local_flags.remove(quiet))
    }

    fn change(when: SetArg, change: impl FnOnce(&mut Termios)) -> io::Result<Self> {
        let stdin = io::stdin();
        let original = termios::tcgetattr(&stdin)?;
        let mut mode = original.clone();
        change(&mut mode);
        termios::tcsetattr(&stdin, when, &mode)?;
        Ok(Self { stdin, original, restored: when })
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // A closed terminal is ignored.
        let _ = termios::tcsetattr(&self.stdin, self.restored, &self.original);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(until: InputEnd, typed: &[u8], expected: Option<&[u8]>) {
        let found = read(typed, until, 16);
        match (found, expected) {
            (Ok(found), Some(desired)) => assert_eq!(*found, desired, "{typed:?}"),
            (Err(error), None) => assert_eq!(error.kind(), io::ErrorKind::Interrupted),
            (found, _) => panic!("{typed:?}: {found:?}"),
        }
    }

    #[test]
    fn keys_make_a_line_that_can_be_corrected() {
        use InputEnd::{End, Enter};
        check(Enter, b"pw\nrest", Some(b"pw"));
        check(Enter, b"pw\rrest", Some(b"pw"));
        check(Enter, b"pw", Some(b"pw"));
        check(Enter, b"px\x7fw\n", Some(b"pw"));
        check(Enter, "pä\x7f\x08w\n".as_bytes(), Some(b"w"));
        check(Enter, b"\x7f\x7fw\n", Some(b"w"));
        check(Enter, b"wrong\x15pw\n", Some(b"pw"));
        check(Enter, b"pw\x03", None);
        check(Enter, b"pw\x04rest", Some(b"pw"));
        check(End, b"a\nwrong\x15b\n\x7f\x04", Some(b"a\nb\n"));
        check(End, b"0123456789abcdefghij", Some(b"0123456789abcdef"));
    }
}
