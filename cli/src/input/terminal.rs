//! Asks at a terminal without showing what is typed.
//!
//! The terminal gives each key as it comes, Ctrl-C included, so that the echo is on again however it ends.

use std::io::{self, Read, Stdin, Write};

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use zeroize::{Zeroize, Zeroizing};

/// What ends what is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The Enter key.
    Enter,
    /// Ctrl-D; Enter is part of it.
    End,
}

/// Writes the question to standard error and reads the answer from the terminal that standard input is, at most `most`
/// bytes.
///
/// # Errors
/// `Interrupted` for Ctrl-C, and what the terminal says.
pub fn hidden(question: &str, until: Until, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let _quiet = Quiet::start(io::stdin())?;
    let mut stderr = io::stderr();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    let answer = read(super::stdin()?, until, most);
    // The key that ended it was not shown either.
    stderr.write_all(b"\n")?;
    answer
}

fn read(mut keys: impl Read, until: Until, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Line { bytes: Zeroizing::new(Vec::with_capacity(most)), until };
    let mut key = Zeroizing::new([0]);
    while line.bytes.len() < most {
        let step = match keys.read(&mut *key)? {
            0 => Step::Done,
            _ => line.take(key[0]),
        };
        match step {
            Step::More => {}
            Step::Done => break,
            Step::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
        }
    }
    Ok(line.bytes)
}

/// What was typed so far.
struct Line {
    bytes: Zeroizing<Vec<u8>>,
    until: Until,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    More,
    Done,
    Interrupted,
}

impl Line {
    /// One more key.
    fn take(&mut self, key: u8) -> Step {
        const CTRL_C: u8 = 3;
        const CTRL_D: u8 = 4;
        const CTRL_U: u8 = 21;
        const BACKSPACE: [u8; 2] = [8, 127];
        match key {
            CTRL_C => return Step::Interrupted,
            CTRL_D => return Step::Done,
            b'\r' | b'\n' if self.until == Until::Enter => return Step::Done,
            CTRL_U => self.cut(self.start_of_line()),
            key if BACKSPACE.contains(&key) => self.cut(self.last_character()),
            key => self.bytes.push(key),
        }
        Step::More
    }

    fn cut(&mut self, at: usize) {
        self.bytes[at..].zeroize();
        self.bytes.truncate(at);
    }

    fn start_of_line(&self) -> usize {
        self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
    }

    /// Where the last character begins; in UTF-8 it may have several bytes.
    fn last_character(&self) -> usize {
        let begins = |byte: &u8| byte & 0b1100_0000 != 0b1000_0000;
        self.bytes.iter().rposition(begins).unwrap_or(0).max(self.start_of_line())
    }
}

/// A terminal that shows nothing until this is dropped.
struct Quiet {
    stdin: Stdin,
    before: Termios,
}

impl Quiet {
    fn start(stdin: Stdin) -> io::Result<Self> {
        let before = termios::tcgetattr(&stdin)?;
        let mut quiet = before.clone();
        quiet
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG | LocalFlags::IEXTEN);
        // What was typed too early was shown, and is not taken for the answer.
        termios::tcsetattr(&stdin, SetArg::TCSAFLUSH, &quiet)?;
        Ok(Self { stdin, before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = termios::tcsetattr(&self.stdin, SetArg::TCSAFLUSH, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(until: Until, typed: &[u8], wanted: Option<&[u8]>) {
        let found = read(typed, until, 16);
        match (found, wanted) {
            (Ok(found), Some(wanted)) => assert_eq!(*found, wanted, "{typed:?}"),
            (Err(error), None) => assert_eq!(error.kind(), io::ErrorKind::Interrupted),
            (found, _) => panic!("{typed:?}: {found:?}"),
        }
    }

    #[test]
    fn keys_make_a_line_that_can_be_corrected() {
        use Until::{End, Enter};
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
