//! Checks that a program can run in an image that contains nothing else.

/// Why a program cannot run alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StaticCheckError {
    /// Not an ELF program for this architecture.
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    /// The file ends before the end of its own tables.
    #[error("the ELF file is cut off")]
    Truncated,
    /// It needs a dynamic loader.
    #[error("it needs the dynamic loader {interpreter}: link it with -C target-feature=+crt-static")]
    Dynamic {
        /// The path of the loader.
        interpreter: String,
    },
}

/// The program header type that names a dynamic loader.
const PT_INTERP: u32 = 3;

/// Rejects a program that needs a dynamic loader, that is: one with a `PT_INTERP` program header. A static
/// position-independent program has dynamic sections but no loader, and passes. Offsets are those of
/// `Elf64_Ehdr` and `Elf64_Phdr` in the System V ABI.
pub fn require_static(program: &[u8]) -> Result<(), StaticCheckError> {
    if program.len() < 64 || !program.starts_with(b"\x7fELF\x02\x01") {
        return Err(StaticCheckError::NotElf);
    }
    let table = offset(program, 0x20)?;
    let entry_size = usize::from(u16::from_le_bytes(bytes(program, 0x36)?));
    let entries = usize::from(u16::from_le_bytes(bytes(program, 0x38)?));
    for index in 0..entries {
        let at = table + index * entry_size;
        if u32::from_le_bytes(bytes(program, at)?) == PT_INTERP {
            let start = offset(program, at + 0x08)?;
            let length = offset(program, at + 0x20)?;
            let path = program.get(start..start.saturating_add(length)).ok_or(StaticCheckError::Truncated)?;
            let interpreter = String::from_utf8_lossy(path).trim_end_matches('\0').to_owned();
            return Err(StaticCheckError::Dynamic { interpreter });
        }
    }
    Ok(())
}

fn bytes<const N: usize>(program: &[u8], at: usize) -> Result<[u8; N], StaticCheckError> {
    let slice = program.get(at..at.saturating_add(N)).ok_or(StaticCheckError::Truncated)?;
    Ok(slice.try_into().expect("the slice was cut to this length"))
}

/// A 64-bit offset that is inside the file.
fn offset(program: &[u8], at: usize) -> Result<usize, StaticCheckError> {
    let value = u64::from_le_bytes(bytes(program, at)?);
    usize::try_from(value).ok().filter(|value| *value <= program.len()).ok_or(StaticCheckError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_static_busybox_passes() {
        assert_eq!(require_static(&std::fs::read("/bin/busybox").unwrap()), Ok(()));
    }

    #[test]
    fn a_dynamic_program_is_refused_with_its_loader() {
        let error = require_static(&std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap_err();
        assert!(
            matches!(&error, StaticCheckError::Dynamic { interpreter } if interpreter.contains("ld-")),
            "{error}"
        );
    }

    #[test]
    fn non_elf_file_is_refused() {
        assert_eq!(require_static(b"#!/bin/sh\n"), Err(StaticCheckError::NotElf));
        let mut cut = std::fs::read("/bin/busybox").unwrap();
        cut.truncate(70);
        assert_eq!(require_static(&cut), Err(StaticCheckError::Truncated));
    }
}
