//! `warren manager backup`: writes what a manager sends into a file, and reads it back before it gets its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rand::RngExt;
use warren_client::Client;
use warren_manager::recovery::backup::{self, Backup};
use warren_security::Passphrase;

use crate::args::{Global, PassphraseArgs};
use crate::connect::connect;
use crate::failure::{Exit, Failure, of_client};
use crate::view::about;
use crate::{input, output};

const WHAT: &str = "no backup was written";

pub async fn backup(global: &Global, file: &Path, passphrase: &PassphraseArgs) -> Result<(), Failure> {
    if file.exists() {
        let why = format!("{} exists", file.display());
        return Err(Failure::new(Exit::Conflict, WHAT, why, "choose another file, or remove that one first"));
    }
    let passphrase = input::passphrase(passphrase.passphrase_file.as_deref(), input::Times::Twice, WHAT)?;
    let client = connect(global, WHAT).await?;
    let unfinished = Unfinished::beside(file);
    let read = fetch(&client, &passphrase, &unfinished, file).await?;
    let (bytes, text) = check(passphrase, read, &unfinished).await?;
    unfinished.finish(file).map_err(|error| failed(file, &error))?;
    eprintln!("{text} ({}); keep the passphrase apart from it", about(bytes));
    output::print(&format!("{}\n", file.display()))
}

/// A file that is not whole yet; removed when it is dropped before it is.
struct Unfinished {
    path: PathBuf,
    kept: bool,
}

impl Unfinished {
    fn beside(file: &Path) -> Self {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        // Of its own, so that two that write to one file at the same time do not mix.
        name.push(format!(".{:016x}.tmp", rand::rng().random::<u64>()));
        Self { path: file.with_file_name(name), kept: false }
    }

    fn create(&self) -> io::Result<File> {
        // Nothing that stands there is written to, nor what a link leads to.
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.path)
    }

    fn finish(mut self, file: &Path) -> io::Result<()> {
        // Nothing that came to be there meanwhile is replaced.
        fs::hard_link(&self.path, file)?;
        fs::remove_file(&self.path)?;
        self.kept = true;
        let directory = file.parent().filter(|above| *above != Path::new(""));
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            // There may be none.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes what the manager sends; durable when this returns. Answers the file's bytes as they are read back.
async fn fetch(
    client: &Client,
    passphrase: &Passphrase,
    to: &Unfinished,
    file: &Path,
) -> Result<Vec<u8>, Failure> {
    // In the words of whoever named it, who knows nothing of the name that it has until it is whole.
    let unwritten = |error: io::Error| failed(file, &error);
    let mut writing = to.create().map_err(unwritten)?;
    let started = client.managers().backup(passphrase.reveal()).await;
    let mut chunks = started.map_err(|error| of_client(WHAT, error))?;
    while let Some(chunk) = chunks.next().await.map_err(|error| of_client(WHAT, error))? {
        writing.write_all(&chunk).map_err(unwritten)?;
    }
    writing.sync_all().map_err(unwritten)?;
    let mut sealed = Vec::new();
    writing.rewind().and_then(|()| writing.read_to_end(&mut sealed)).map_err(unwritten)?;
    Ok(sealed)
}

/// Opens the backup as a restore would, and says what is in it.
async fn check(passphrase: Passphrase, sealed: Vec<u8>, from: &Unfinished) -> Result<(u64, String), Failure> {
    let bytes = sealed.len() as u64;
    let opened = tokio::task::spawn_blocking(move || backup::read(&passphrase, sealed)).await;
    let Backup { state, .. } = opened.expect("reading a backup does not panic").map_err(|error| {
        let why = format!("{} does not read back as it should: {error}", from.path.display());
        let hint = "check the disk, and that this program's version is the managers'; then try again";
        Failure::new(Exit::Failed, WHAT, why, hint)
    })?;
    let cluster = state.cluster().map(|cluster| cluster.id.to_string()).unwrap_or_default();
    Ok((bytes, format!("a backup of cluster {cluster} is written and was read back")))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let exit = if error.kind() == io::ErrorKind::AlreadyExists { Exit::Conflict } else { Exit::Failed };
    Failure::new(exit, WHAT, format!("{}: {error}", path.display()), "check the path, and that there is room")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_its_name_last_and_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b");
        let names = || {
            let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let write = |text: &[u8]| {
            let unfinished = Unfinished::beside(&file);
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
        let other = Unfinished::beside(&file);
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
