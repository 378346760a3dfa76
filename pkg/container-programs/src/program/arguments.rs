//! The arguments of the logger: key and value pairs in any order, as containerd's shim derives them from a
//! URI's query.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::writer::RotationLimits;

/// Parsed arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggerArgs {
    /// Directory of the files.
    pub dir: PathBuf,
    /// Rotation limits.
    pub limits: RotationLimits,
    /// Number of the attempt that begins.
    pub attempt: Option<u64>,
    /// Time after which the beginning of a line is written without its rest.
    pub flush_after: Option<Duration>,
    /// User and group of the node that get the pipes of the output.
    pub owner: Option<u32>,
}

impl LoggerArgs {
    /// Parses the arguments after the program name. The error has the invalid argument and the expected
    /// form.
    pub fn parse(words: &[OsString]) -> Result<LoggerArgs, String> {
        let (mut dir, mut max_size, mut max_files) = (None, None, None);
        let (mut attempt, mut flush_after, mut owner) = (None, None, None);
        let (pairs, rest) = words.as_chunks::<2>();
        if let [alone] = rest {
            return Err(format!("{alone:?} has no value: arguments are pairs of a key and a value"));
        }
        for [key, value] in pairs {
            let is_second = match key.to_str() {
                Some("dir") => dir.replace(directory(value)?).is_some(),
                Some("max-size") => max_size.replace(number(key, value, 1)?).is_some(),
                Some("max-files") => max_files.replace(number(key, value, 1)?).is_some(),
                Some("attempt") => attempt.replace(number(key, value, 0)?).is_some(),
                Some("flush-after") => flush_after.replace(number(key, value, 1)?).is_some(),
                Some("owner") => owner.replace(id(key, value)?).is_some(),
                _ => return Err(format!("unknown argument {key:?}: {KNOWN_KEYS}")),
            };
            if is_second {
                return Err(format!("{key:?} is given twice"));
            }
        }
        let missing = |key: &str| format!("{key:?} is missing: {KNOWN_KEYS}");
        let max_size = max_size.ok_or_else(|| missing("max-size"))?;
        let max_files = max_files.ok_or_else(|| missing("max-files"))?;
        let limits = RotationLimits { max_size, max_files };
        let flush_after = flush_after.map(Duration::from_millis);
        Ok(LoggerArgs { dir: dir.ok_or_else(|| missing("dir"))?, limits, attempt, flush_after, owner })
    }
}

const KNOWN_KEYS: &str = "required are `dir DIRECTORY`, `max-size BYTES` and `max-files COUNT`; optional are \
                     `attempt NUMBER`, `flush-after MILLISECONDS` and `owner ID`";

fn directory(value: &OsStr) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("\"dir\" is {value:?}: it must be an absolute path"))
    }
}

fn id(key: &OsStr, value: &OsStr) -> Result<u32, String> {
    let parsed = u32::try_from(number(key, value, 0)?);
    parsed.map_err(|_| format!("{key:?} is {value:?}: it must be the id of a user"))
}

fn number(key: &OsStr, value: &OsStr, least: u64) -> Result<u64, String> {
    let parsed = value.to_str().and_then(|text| text.parse().ok()).filter(|number| *number >= least);
    parsed.ok_or_else(|| format!("{key:?} is {value:?}: it must be a whole number, at least {least}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<LoggerArgs, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        LoggerArgs::parse(&words)
    }

    #[test]
    fn pairs_come_in_any_order() {
        let expected = LoggerArgs {
            dir: "/a/b".into(),
            limits: RotationLimits { max_size: 10, max_files: 3 },
            attempt: Some(7),
            flush_after: Some(Duration::from_millis(100)),
            owner: Some(1_000_000),
        };
        for line in [
            "dir /a/b max-size 10 max-files 3 attempt 7 flush-after 100 owner 1000000",
            "owner 1000000 max-files 3 attempt 7 flush-after 100 dir /a/b max-size 10",
            "attempt 7 max-size 10 dir /a/b owner 1000000 flush-after 100 max-files 3",
        ] {
            assert_eq!(parse(line), Ok(expected.clone()), "{line}");
        }
        let without = parse("dir /a/b max-size 10 max-files 3").unwrap();
        assert_eq!(without, LoggerArgs { attempt: None, flush_after: None, owner: None, ..expected });
    }

    #[test]
    fn invalid_argument_is_named() {
        for (line, words) in [
            ("dir /a max-size 10", "\"max-files\" is missing"),
            ("max-files 1 max-size 10", "\"dir\" is missing"),
            ("dir /a max-files 1", "\"max-size\" is missing"),
            ("dir a max-size 10 max-files 1", "must be an absolute path"),
            ("dir /a max-size 10k max-files 1", "\"max-size\" is \"10k\""),
            ("dir /a max-size 10 max-files 0", "\"max-files\" is \"0\""),
            ("dir /a max-size 10 max-files -1", "\"max-files\" is \"-1\""),
            ("dir /a max-size 10 max-files 1 attempt ", "\"attempt\" is \"\""),
            ("dir /a max-size 10 max-files 1 flush-after 0", "\"flush-after\" is \"0\""),
            ("dir /a max-size 10 max-files 1 owner 4294967296", "\"owner\" is \"4294967296\""),
            ("dir /a max-size 10 max-files 1 colour blue", "unknown argument \"colour\""),
            ("dir /a max-size 10 max-files", "\"max-files\" has no value"),
            ("dir /a max-size 10 max-files 1 dir /a", "\"dir\" is given twice"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
