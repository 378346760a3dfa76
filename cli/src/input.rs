//! Reads what people hand over to be kept: files, standard input, and passwords. None of it is echoed or told, and
//! what was read is overwritten when it is no longer needed.

mod terminal;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;

use warren_security::Passphrase;
use warren_types::ContentKind;
use warren_types::content::MAX_CONTENT;
use zeroize::{Zeroize, Zeroizing};

use crate::failure::{Exit, Failure};

/// The longest password that is taken.
const MAX_PASSWORD: usize = 64 << 10;

/// The bytes of `file`, or of standard input for `-`: at least one, and no more than a content may have. `what` is
/// what is not done without them.
pub fn content(kind: ContentKind, file: &Path, what: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let source = match file.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => file.display().to_string(),
    };
    let failed = |exit, why: String, hint: &str| Failure::new(exit, what, format!("{source}: {why}"), hint);
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            failed(Exit::NotFound, "there is no such file".to_owned(), "check the path")
        }
        io::ErrorKind::IsADirectory => {
            failed(Exit::Usage, "is a directory".to_owned(), "give a file, or pipe one in and give -")
        }
        io::ErrorKind::Interrupted => Failure::new(Exit::Failed, what, "it was interrupted", ""),
        _ => failed(Exit::Failed, error.to_string(), "check the path and who may read it"),
    };
    let read = match source.as_str() {
        "standard input" if kind == ContentKind::Secret && io::stdin().is_terminal() => terminal::hidden(
            "The secret, not shown; Ctrl-D ends it:\n",
            terminal::Until::End,
            MAX_CONTENT + 1,
        ),
        "standard input" => stdin().and_then(|stdin| all_of(stdin, MAX_CONTENT + 1)),
        _ => File::open(file).and_then(|file| all_of(file, MAX_CONTENT + 1)),
    };
    let bytes = read.map_err(unread)?;
    match bytes.len() {
        0 => Err(failed(
            Exit::Usage,
            format!("is empty; a {kind} has at least a byte"),
            "give what it shall hold",
        )),
        found if found > MAX_CONTENT => {
            let why = format!("has more than {MAX_CONTENT} bytes (1 MiB), the most that a {kind} may have");
            Err(failed(Exit::Usage, why, "keep what is larger in a volume or in the image"))
        }
        _ => Ok(bytes),
    }
}

/// A password: the first line of standard input if `piped`, else asked for at the terminal.
pub fn password(piped: bool, question: &str, what: &str) -> Result<Zeroizing<String>, Failure> {
    let failed = |exit, why: &str, hint: &str| Failure::new(exit, what, why, hint);
    let at_terminal = io::stdin().is_terminal();
    let read = match (piped, at_terminal) {
        (_, true) => terminal::hidden(question, terminal::Until::Enter, MAX_PASSWORD + 1),
        (true, false) => stdin().and_then(|stdin| all_of(stdin, MAX_PASSWORD + 1)),
        (false, false) => {
            let why = "the password is asked for, and standard input is no terminal";
            return Err(failed(Exit::Usage, why, "give --password-stdin and pipe it in"));
        }
    };
    let bytes = read.map_err(|error| match error.kind() {
        io::ErrorKind::Interrupted => failed(Exit::Failed, "it was interrupted", ""),
        _ => Failure::new(Exit::Failed, what, format!("the password: {error}"), "check standard input"),
    })?;
    line(bytes, &Noun { noun: "password", hint: "give the password, or a token" }, what)
}

/// How often something is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// What is wrong will show at once.
    Once,
    /// Nobody could tell later what was mistyped.
    Twice,
}

/// What a backup is encrypted with: the first line of `file`, of standard input for `-`, or asked for at the terminal.
pub fn passphrase(file: Option<&Path>, times: Times, what: &str) -> Result<Passphrase, Failure> {
    let noun = Noun { noun: "passphrase", hint: "give one, or a file with --passphrase-file" };
    let ask = |question: &str| terminal::hidden(question, terminal::Until::Enter, MAX_PASSWORD + 1);
    let read = match file {
        Some(file) if file.to_str() == Some("-") => stdin().and_then(|stdin| all_of(stdin, MAX_PASSWORD + 1)),
        Some(file) => File::open(file).and_then(|file| all_of(file, MAX_PASSWORD + 1)),
        None if io::stdin().is_terminal() => ask("Passphrase of the backup: "),
        None => {
            let why = "the passphrase is asked for, and standard input is no terminal";
            return Err(Failure::new(Exit::Usage, what, why, "give a file with --passphrase-file"));
        }
    };
    let unread = |error: io::Error| {
        let whence = file.map_or_else(String::new, |file| format!(" in {}", file.display()));
        let why = format!("the passphrase{whence}: {error}");
        match error.kind() {
            io::ErrorKind::Interrupted => Failure::new(Exit::Failed, what, "it was interrupted", ""),
            io::ErrorKind::NotFound => Failure::new(Exit::NotFound, what, why, "check --passphrase-file"),
            _ => Failure::new(Exit::Failed, what, why, "check --passphrase-file"),
        }
    };
    let first = line(read.map_err(unread)?, &noun, what)?;
    if file.is_none() && times == Times::Twice {
        let second = line(ask("The same again: ").map_err(unread)?, &noun, what)?;
        if first != second {
            return Err(Failure::new(Exit::Usage, what, "the two passphrases differ", "type it again"));
        }
    }
    Passphrase::parse(first).map_err(|why| Failure::new(Exit::Usage, what, why, "choose another"))
}

/// What is read, for those who are told what is wrong with it.
struct Noun {
    noun: &'static str,
    hint: &'static str,
}

/// The first line of what was read.
fn line(mut bytes: Zeroizing<Vec<u8>>, noun: &Noun, what: &str) -> Result<Zeroizing<String>, Failure> {
    let Noun { noun, hint } = noun;
    let failed = |why: String, hint: &str| Failure::new(Exit::Usage, what, why, hint);
    if bytes.len() > MAX_PASSWORD {
        let why = format!("the {noun} has more than {MAX_PASSWORD} bytes");
        return Err(failed(why, &format!("pipe in the {noun} and nothing else")));
    }
    // Whoever writes it with `echo` means what stands before the end of the line.
    let end = bytes.strip_suffix(b"\n").map_or(bytes.len(), <[u8]>::len);
    let end = bytes[..end].strip_suffix(b"\r").map_or(end, <[u8]>::len);
    bytes[end..].zeroize();
    bytes.truncate(end);
    if bytes.is_empty() {
        return Err(failed(format!("the {noun} is empty"), hint));
    }
    String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new).map_err(|error| {
        error.into_bytes().zeroize();
        failed(format!("the {noun} is no text in UTF-8"), hint)
    })
}

/// Standard input past the buffer of the standard library, where its bytes would stay.
fn stdin() -> io::Result<File> {
    io::stdin().as_fd().try_clone_to_owned().map(File::from)
}

/// Everything, but no more than `most` bytes. The place for them is taken at once, since one that grows leaves copies.
fn all_of(source: impl Read, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(most));
    source.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &Path) -> Result<usize, Failure> {
        content(ContentKind::Secret, file, "secret db was not created").map(|bytes| bytes.len())
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
        assert_eq!(read(&file("most", &vec![7; MAX_CONTENT])).unwrap(), MAX_CONTENT);
        for (path, exit, why) in [
            (file("empty", b""), Exit::Usage, "empty: is empty; a secret has at least a byte"),
            (file("large", &vec![7; MAX_CONTENT + 1]), Exit::Usage, "has more than 1048576 bytes (1 MiB)"),
            (dir.path().join("none"), Exit::NotFound, "there is no such file"),
            (dir.path().to_owned(), Exit::Usage, "is a directory"),
        ] {
            let failure = read(&path).unwrap_err();
            assert!(failure.exit == exit && failure.why.contains(why), "{failure:?}");
        }
    }

    #[test]
    fn a_passphrase_is_a_line_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = |text: &[u8]| {
            let path = dir.path().join("p");
            std::fs::write(&path, text).unwrap();
            passphrase(Some(&path), Times::Twice, "x")
        };
        for text in ["correct horse", "correct horse\n", "correct horse\r\n"] {
            assert_eq!(file(text.as_bytes()).unwrap().reveal(), "correct horse");
        }
        for (text, why) in [
            (&b"\n"[..], "the passphrase is empty"),
            (b"short", "has 5 characters; give at least 8"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", "is no text in UTF-8"),
        ] {
            let failure = file(text).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.why.contains(why), "{failure}");
        }
        let missing = passphrase(Some(&dir.path().join("none")), Times::Once, "x").unwrap_err();
        assert_eq!(missing.exit, Exit::NotFound);
        let wanted = format!("the passphrase in {}", dir.path().join("none").display());
        assert!(missing.why.starts_with(&wanted), "{missing}");
    }

    #[test]
    fn the_place_for_the_bytes_does_not_grow() {
        let bytes = all_of(&[7; 100][..], 64).unwrap();
        assert_eq!((bytes.len(), bytes.capacity()), (64, 64));
    }
}
