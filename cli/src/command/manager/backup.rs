//! `warren manager backup`: writes a backup to a temporary file, verifies it, then renames it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rand::RngExt;
use warren_bootstrap::backup::{self, Backup};
use warren_client::Client;
use warren_security::Passphrase;

use crate::args::{GlobalArgs, PassphraseArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::view::rounded_bytes;
use crate::{input, output};

const WHAT: &str = "no backup was written";

pub async fn backup(
    global: &GlobalArgs,
    file: &Path,
    passphrase: &PassphraseArgs,
) -> Result<(), CommandError> {
    if file.exists() {
        let why = format!("{} exists", file.display());
        return Err(CommandError::new(
            ExitKind::Conflict,
            WHAT,
            why,
            "choose another file, or remove the existing one",
        ));
    }
    let passphrase =
        input::read_passphrase(passphrase.passphrase_file.as_deref(), input::PromptCount::Twice, WHAT)?;
    let client = connect(global, WHAT).await?;
    let unfinished = PartialFile::next_to(file);
    let read = fetch(&client, &passphrase, &unfinished, file).await?;
    let (bytes, text) = check(passphrase, read, &unfinished).await?;
    unfinished.finish(file).map_err(|error| failed(file, &error))?;
    eprintln!("{text} ({}); store the passphrase separately", rounded_bytes(bytes));
    output::print(&format!("{}\n", file.display()))
}

/// A temporary file that is removed on drop unless it was finished.
struct PartialFile {
    path: PathBuf,
    is_complete: bool,
}

impl PartialFile {
    fn next_to(file: &Path) -> Self {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        // Unique, so that concurrent backups to one file do not mix.
        name.push(format!(".{:016x}.tmp", rand::rng().random::<u64>()));
        Self { path: file.with_file_name(name), is_complete: false }
    }

    fn create(&self) -> io::Result<File> {
        // Never opens an existing file or follows a link.
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.path)
    }

    fn finish(mut self, file: &Path) -> io::Result<()> {
        // A file created in the meantime is not replaced.
        fs::hard_link(&self.path, file)?;
        fs::remove_file(&self.path)?;
        self.is_complete = true;
        let directory = file.parent().filter(|above| *above != Path::new(""));
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_complete {
            // The file may be missing.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes the backup durably and returns the bytes as read back from the file.
async fn fetch(
    client: &Client,
    passphrase: &Passphrase,
    to: &PartialFile,
    file: &Path,
) -> Result<Vec<u8>, CommandError> {
    // Errors name the final file, not the temporary one.
    let unwritten = |error: io::Error| failed(file, &error);
    let mut writing = to.create().map_err(unwritten)?;
    let started = client.managers().backup(passphrase.reveal()).await;
    let mut chunks = started.map_err(|error| from_client(WHAT, error))?;
    while let Some(chunk) = chunks.next().await.map_err(|error| from_client(WHAT, error))? {
        writing.write_all(&chunk).map_err(unwritten)?;
    }
    writing.sync_all().map_err(unwritten)?;
    let mut sealed = Vec::new();
    writing.rewind().and_then(|()| writing.read_to_end(&mut sealed)).map_err(unwritten)?;
    Ok(sealed)
}

/// Opens the backup as a restore would, and describes it.
async fn check(
    passphrase: Passphrase,
    sealed: Vec<u8>,
    from: &PartialFile,
) -> Result<(u64, String), CommandError> {
    let bytes = sealed.len() as u64;
    let opened = tokio::task::spawn_blocking(move || backup::read(&passphrase, sealed)).await;
    let Backup { state, .. } = opened.expect("reading a backup does not panic").map_err(|error| {
        let why = format!("{} cannot be verified: {error}", from.path.display());
        let hint = "check the disk and that this program has the version of the managers, then retry";
        CommandError::new(ExitKind::Failed, WHAT, why, hint)
    })?;
    let cluster = state.cluster().map(|cluster| cluster.id.to_string()).unwrap_or_default();
    Ok((bytes, format!("backup of cluster {cluster} written and verified")))
}

fn failed(path: &Path, error: &io::Error) -> CommandError {
    let exit =
        if error.kind() == io::ErrorKind::AlreadyExists { ExitKind::Conflict } else { ExitKind::Failed };
    CommandError::new(exit, WHAT, format!("{}: {error}", path.display()), "check the path and the free space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_file_is_renamed_last_and_never_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b");
        let names = || {
            let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let write = |text: &[u8]| {
            let unfinished = PartialFile::next_to(&file);
            unfinished.create().unwrap().write_all(text).unwrap();
            unfinished
        };
        drop(write(b"half"));
        assert!(names().is_empty(), "what was not finished leaves nothing");
        let unfinished = write(b"whole");
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&unfinished.path).unwrap());
        assert_eq!(mode & 0o7777, 0o600);
        let [name] = &names()[..] else { panic!("one file, not {:?}", names()) };
        assert!(name.starts_with("b.") && name.ends_with(".tmp"), "{name}");
        // What follows a link, or what stands there, is refused.
        assert_eq!(unfinished.create().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let other = PartialFile::next_to(&file);
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &other.path).unwrap();
        assert_eq!(other.create().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(other);
        unfinished.finish(&file).unwrap();
        assert_eq!((names(), fs::read(&file).unwrap()), (vec!["b".to_owned()], b"whole".to_vec()));
        let refused = write(b"other").finish(&file).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((names(), fs::read(&file).unwrap()), (vec!["b".to_owned()], b"whole".to_vec()));
    }
}
