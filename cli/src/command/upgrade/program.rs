//! The file of a new program: its size, its digest, and its architecture by the header of an ELF file (elf(5)).

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::Path;

use warren_daemon::program::{MAX_PROGRAM_BYTES, ProgramDigest};

use crate::failure::{CommandError, ExitKind};

/// Bytes of the header up to the machine.
const HEADER_BYTES: usize = 20;
const MAGIC: [u8; 4] = *b"\x7fELF";
/// Class, and order of the bytes.
const IDENTIFICATION: [u8; 2] = [2, 1];
/// Types of files that are executed: with a fixed address, or with any.
const EXECUTABLE_TYPES: [u16; 2] = [2, 3];
/// Numbers of machines, with the names that nodes report.
const MACHINES: [(u16, &str); 3] = [(62, "amd64"), (183, "arm64"), (243, "riscv64")];

/// A program that can be sent to nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeProgram {
    pub size: u64,
    pub digest: ProgramDigest,
    /// As nodes report it.
    pub architecture: &'static str,
}

impl UpgradeProgram {
    /// Reads the file; `what` is the failure summary.
    pub fn read(path: &Path, what: &str) -> Result<Self, CommandError> {
        let failed = |exit, why: &str, hint: &str| {
            CommandError::new(exit, what, format!("{}: {why}", path.display()), hint)
        };
        let unreadable = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => failed(ExitKind::NotFound, "there is no such file", "check the path"),
            _ => failed(ExitKind::Failed, &error.to_string(), "check the path and its permissions"),
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let hint = "give the program `warren` of the new version for the architecture of the machines";
        if !metadata.is_file() {
            return Err(failed(ExitKind::Usage, "is not a file", hint));
        }
        let mut header = Vec::with_capacity(HEADER_BYTES);
        (&mut file).take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(unreadable)?;
        let architecture = architecture(&header).map_err(|why| failed(ExitKind::Usage, &why, hint))?;
        if metadata.len() > MAX_PROGRAM_BYTES {
            let why = format!("has {} bytes, more than {MAX_PROGRAM_BYTES}", metadata.len());
            return Err(failed(ExitKind::Usage, &why, hint));
        }
        file.rewind().map_err(unreadable)?;
        let digest = ProgramDigest::of(&mut file).map_err(unreadable)?;
        Ok(Self { size: metadata.len(), digest, architecture })
    }
}

/// The architecture of the executable with this header.
fn architecture(header: &[u8]) -> Result<&'static str, String> {
    let none = || "is not an executable for Linux (ELF, 64 bits)".to_owned();
    let header: &[u8; HEADER_BYTES] = header.try_into().map_err(|_| none())?;
    let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    if header[..4] != MAGIC || header[4..6] != IDENTIFICATION || !EXECUTABLE_TYPES.contains(&number(16)) {
        return Err(none());
    }
    let machine = number(18);
    let known = MACHINES.iter().find(|(number, _)| *number == machine);
    known
        .map(|(_, name)| *name)
        .ok_or_else(|| format!("is for another kind of machine (number {machine} of ELF)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut header = vec![0; HEADER_BYTES];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (header[16], header[18]) = (3, 62);
        change(&mut header);
        header
    }

    #[test]
    fn header_says_for_which_machines_a_program_is() {
        assert_eq!(architecture(&header(|_| {})), Ok("amd64"));
        assert_eq!(architecture(&header(|header| header[16] = 2)), Ok("amd64"));
        assert_eq!(architecture(&header(|header| header[18] = 183)), Ok("arm64"));
        let sparc = architecture(&header(|header| header[18] = 43)).unwrap_err();
        assert_eq!(sparc, "is for another kind of machine (number 43 of ELF)");
        let changes: [fn(&mut [u8]); 4] = [
            |header| header[0] = b'#',
            |header| header[4] = 1,
            |header| header[5] = 2,
            // A part of a program.
            |header| header[16] = 1,
        ];
        for change in changes {
            assert!(architecture(&header(change)).unwrap_err().starts_with("is not an executable"));
        }
        for short in [&b""[..], b"\x7fELF", b"#!/bin/sh\n"] {
            architecture(short).unwrap_err();
        }
    }

    #[test]
    fn program_of_this_test_is_accepted_and_other_files_are_not() {
        let own = std::env::current_exe().unwrap();
        let program = UpgradeProgram::read(&own, "nothing was upgraded").unwrap();
        assert_eq!(program.size, std::fs::metadata(&own).unwrap().len());
        assert_eq!(program.digest, ProgramDigest::of(File::open(&own).unwrap()).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let (text, sparse) = (dir.path().join("text"), dir.path().join("sparse"));
        std::fs::write(&text, "#!/bin/sh\nexit 0\n# a script\n").unwrap();
        std::fs::write(&sparse, header(|_| {})).unwrap();
        File::options().write(true).open(&sparse).unwrap().set_len(MAX_PROGRAM_BYTES + 1).unwrap();
        for (path, exit, why) in [
            (text.as_path(), ExitKind::Usage, "is not an executable"),
            (sparse.as_path(), ExitKind::Usage, "more than 536870912"),
            (dir.path(), ExitKind::Usage, "is not a file"),
            (Path::new("/nowhere/warren"), ExitKind::NotFound, "no such file"),
        ] {
            let failure = UpgradeProgram::read(path, "nothing was upgraded").unwrap_err();
            assert_eq!(failure.kind, exit, "{failure}");
            assert!(failure.why.contains(why), "{failure}");
        }
    }
}
