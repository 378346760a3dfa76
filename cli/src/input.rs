//! Reads secrets, configs, passwords and passphrases from files, standard input or the terminal. They are never echoed
//! or printed, and buffers are overwritten after use.

pub mod terminal;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;

use warren_security::{Passphrase, UnlockKey};
use warren_types::SecretObjectKind;
use warren_types::secret_object::MAX_SECRET_OBJECT_SIZE;
use zeroize::{Zeroize, Zeroizing};

use crate::failure::{CommandError, ExitKind};

/// Maximum length of a password in bytes.
const MAX_PASSWORD: usize = 64 << 10;

/// Reads `file`, or standard input for `-`: from one byte to [`MAX_SECRET_OBJECT_SIZE`]. `what` is the failure summary.
pub fn read_secret_object(
    kind: SecretObjectKind,
    file: &Path,
    what: &str,
) -> Result<Zeroizing<Vec<u8>>, CommandError> {
    let source = match file.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => file.display().to_string(),
    };
    let failed =
        |exit, why: String, hint: &str| CommandError::new(exit, what, format!("{source}: {why}"), hint);
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            failed(ExitKind::NotFound, "there is no such file".to_owned(), "check the path")
        }
        io::ErrorKind::IsADirectory => {
            failed(ExitKind::Usage, "is a directory".to_owned(), "give a file, or - to read standard input")
        }
        io::ErrorKind::Interrupted => CommandError::new(ExitKind::Failed, what, "interrupted", ""),
        _ => failed(ExitKind::Failed, error.to_string(), "check the path and its permissions"),
    };
    let read = match source.as_str() {
        "standard input" if kind == SecretObjectKind::Secret && io::stdin().is_terminal() => {
            terminal::read_hidden(
                "Enter the secret (not shown); end with Ctrl-D:\n",
                terminal::InputEnd::End,
                MAX_SECRET_OBJECT_SIZE + 1,
            )
        }
        "standard input" => stdin().and_then(|stdin| read_limited(stdin, MAX_SECRET_OBJECT_SIZE + 1)),
        _ => File::open(file).and_then(|file| read_limited(file, MAX_SECRET_OBJECT_SIZE + 1)),
    };
    let bytes = read.map_err(unread)?;
    match bytes.len() {
        0 => {
            Err(failed(ExitKind::Usage, format!("is empty; a {kind} has at least one byte"), "give the data"))
        }
        size if size > MAX_SECRET_OBJECT_SIZE => {
            let why =
                format!("has more than {MAX_SECRET_OBJECT_SIZE} bytes (1 MiB), the maximum of a {kind}");
            Err(failed(ExitKind::Usage, why, "store larger data in a volume or in the image"))
        }
        _ => Ok(bytes),
    }
}

/// Reads a password: the first line of standard input if `piped`, else from the terminal.
pub fn read_password(piped: bool, question: &str, what: &str) -> Result<Zeroizing<String>, CommandError> {
    let failed = |exit, why: &str, hint: &str| CommandError::new(exit, what, why, hint);
    let at_terminal = io::stdin().is_terminal();
    let read = match (piped, at_terminal) {
        (_, true) => terminal::read_hidden(question, terminal::InputEnd::Enter, MAX_PASSWORD + 1),
        (true, false) => stdin().and_then(|stdin| read_limited(stdin, MAX_PASSWORD + 1)),
        (false, false) => {
            let why = "no password given, and standard input is not a terminal";
            return Err(failed(ExitKind::Usage, why, "use --password-stdin"));
        }
    };
    let bytes = read.map_err(|error| match error.kind() {
        io::ErrorKind::Interrupted => failed(ExitKind::Failed, "interrupted", ""),
        _ => CommandError::new(
            ExitKind::Failed,
            what,
            format!("the password: {error}"),
            "check standard input",
        ),
    })?;
    first_line(bytes, &InputKind { name: "password", hint: "give the password, or a token" }, what)
}

/// Reads an unlock key: the first line of standard input, or of the terminal.
pub fn read_unlock_key(what: &str) -> Result<UnlockKey, CommandError> {
    let read = match io::stdin().is_terminal() {
        true => terminal::read_hidden("Unlock key: ", terminal::InputEnd::Enter, MAX_PASSWORD + 1),
        false => stdin().and_then(|stdin| read_limited(stdin, MAX_PASSWORD + 1)),
    };
    let bytes = read.map_err(|error| match error.kind() {
        io::ErrorKind::Interrupted => CommandError::new(ExitKind::Failed, what, "interrupted", ""),
        _ => {
            let why = format!("the unlock key: {error}");
            CommandError::new(ExitKind::Failed, what, why, "check standard input")
        }
    })?;
    let hint = "give the key that `warren cluster unlock-key` printed";
    let text = first_line(bytes, &InputKind { name: "unlock key", hint }, what)?;
    UnlockKey::parse(&text).map_err(|why| CommandError::new(ExitKind::Usage, what, why, hint))
}

/// Number of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptCount {
    /// A wrong value is detected at once.
    Once,
    /// A typing error could not be detected later.
    Twice,
}

/// Reads a passphrase: the first line of `file`, of standard input for `-`, or from the terminal.
pub fn read_passphrase(
    file: Option<&Path>,
    times: PromptCount,
    what: &str,
) -> Result<Passphrase, CommandError> {
    let noun = InputKind { name: "passphrase", hint: "give one, or a file with --passphrase-file" };
    let ask = |question: &str| terminal::read_hidden(question, terminal::InputEnd::Enter, MAX_PASSWORD + 1);
    let read = match file {
        Some(file) if file.to_str() == Some("-") => {
            stdin().and_then(|stdin| read_limited(stdin, MAX_PASSWORD + 1))
        }
        Some(file) => File::open(file).and_then(|file| read_limited(file, MAX_PASSWORD + 1)),
        None if io::stdin().is_terminal() => ask("Passphrase of the backup: "),
        None => {
            let why = "no passphrase given, and standard input is not a terminal";
            return Err(CommandError::new(ExitKind::Usage, what, why, "give a file with --passphrase-file"));
        }
    };
    let unread = |error: io::Error| {
        let origin = file.map_or_else(String::new, |file| format!(" in {}", file.display()));
        let why = format!("the passphrase{origin}: {error}");
        match error.kind() {
            io::ErrorKind::Interrupted => CommandError::new(ExitKind::Failed, what, "interrupted", ""),
            io::ErrorKind::NotFound => {
                CommandError::new(ExitKind::NotFound, what, why, "check --passphrase-file")
            }
            _ => CommandError::new(ExitKind::Failed, what, why, "check --passphrase-file"),
        }
    };
    let first = first_line(read.map_err(unread)?, &noun, what)?;
    if file.is_none() && times == PromptCount::Twice {
        let second = first_line(ask("Repeat the passphrase: ").map_err(unread)?, &noun, what)?;
        if first != second {
            return Err(CommandError::new(
                ExitKind::Usage,
                what,
                "the two passphrases differ",
                "type it again",
            ));
        }
    }
    Passphrase::parse(first).map_err(|why| CommandError::new(ExitKind::Usage, what, why, "choose another"))
}

/// Name and hint for errors.
struct InputKind {
    name: &'static str,
    hint: &'static str,
}

/// The input without its line break.
fn first_line(
    mut bytes: Zeroizing<Vec<u8>>,
    noun: &InputKind,
    what: &str,
) -> Result<Zeroizing<String>, CommandError> {
    let InputKind { name: noun, hint } = noun;
    let failed = |why: String, hint: &str| CommandError::new(ExitKind::Usage, what, why, hint);
    if bytes.len() > MAX_PASSWORD {
        let why = format!("the {noun} has more than {MAX_PASSWORD} bytes");
        return Err(failed(why, &format!("pass only the {noun}")));
    }
    // `echo` adds a line break.
    let end = bytes.strip_suffix(b"\n").map_or(bytes.len(), <[u8]>::len);
    let end = bytes[..end].strip_suffix(b"\r").map_or(end, <[u8]>::len);
    bytes[end..].zeroize();
    bytes.truncate(end);
    if bytes.is_empty() {
        return Err(failed(format!("the {noun} is empty"), hint));
    }
    String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new).map_err(|error| {
        error.into_bytes().zeroize();
        failed(format!("the {noun} is not valid UTF-8"), hint)
    })
}

/// Standard input without the buffer of the standard library, which would keep the bytes.
fn stdin() -> io::Result<File> {
    io::stdin().as_fd().try_clone_to_owned().map(File::from)
}

/// Reads at most `most` bytes into a buffer of fixed capacity, since a growing one leaves copies.
fn read_limited(source: impl Read, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(most));
    source.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &Path) -> Result<usize, CommandError> {
        read_secret_object(SecretObjectKind::Secret, file, "secret db was not created")
            .map(|bytes| bytes.len())
    }

    #[test]
    fn a_file_is_read_whole_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        assert_eq!(read(&file("one", b"\0")).unwrap(), 1);
        assert_eq!(read(&file("most", &vec![7; MAX_SECRET_OBJECT_SIZE])).unwrap(), MAX_SECRET_OBJECT_SIZE);
        for (path, exit, why) in [
            (file("empty", b""), ExitKind::Usage, "empty: is empty; a secret has at least one byte"),
            (
                file("large", &vec![7; MAX_SECRET_OBJECT_SIZE + 1]),
                ExitKind::Usage,
                "has more than 1048576 bytes (1 MiB)",
            ),
            (dir.path().join("none"), ExitKind::NotFound, "there is no such file"),
            (dir.path().to_owned(), ExitKind::Usage, "is a directory"),
        ] {
            let failure = read(&path).unwrap_err();
            assert!(failure.kind == exit && failure.why.contains(why), "{failure:?}");
        }
    }

    #[test]
    fn a_passphrase_is_a_line_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = |text: &[u8]| {
            let path = dir.path().join("p");
            std::fs::write(&path, text).unwrap();
            read_passphrase(Some(&path), PromptCount::Twice, "x")
        };
        for text in ["correct horse", "correct horse\n", "correct horse\r\n"] {
            assert_eq!(file(text.as_bytes()).unwrap().reveal(), "correct horse");
        }
        for (text, why) in [
            (&b"\n"[..], "the passphrase is empty"),
            (b"short", "has 5 characters; give at least 8"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", "is not valid UTF-8"),
        ] {
            let failure = file(text).unwrap_err();
            assert!(failure.kind == ExitKind::Usage && failure.why.contains(why), "{failure}");
        }
        let missing = read_passphrase(Some(&dir.path().join("none")), PromptCount::Once, "x").unwrap_err();
        assert_eq!(missing.kind, ExitKind::NotFound);
        let expected = format!("the passphrase in {}", dir.path().join("none").display());
        assert!(missing.why.starts_with(&expected), "{missing}");
    }

    #[test]
    fn buffer_never_reallocates() {
        let bytes = read_limited(&[7; 100][..], 64).unwrap();
        assert_eq!((bytes.len(), bytes.capacity()), (64, 64));
    }
}
