//! Which engine keeps a log, and opening the log of a directory.

use std::{
    fmt::{self, Display},
    path::Path,
    str::FromStr,
};

use crate::{Error, LogStore, RedbLog, Result, SledLog};

/// What keeps a log on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Engine {
    /// One redb file.
    #[default]
    Redb,
    /// A directory of sled's.
    Sled,
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 2] = [Engine::Redb, Engine::Sled];

    /// The word for it in settings.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Redb => "redb",
            Engine::Sled => "sled",
        }
    }

    /// The name of its file or directory.
    fn file_name(self) -> &'static str {
        match self {
            Engine::Redb => "raft.redb",
            Engine::Sled => "raft.sled",
        }
    }
}

impl Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no log engine: choose redb or sled")]
pub struct UnknownEngine {
    /// The word.
    pub found: String,
}

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, UnknownEngine> {
        let known = Engine::ALL.into_iter().find(|engine| engine.name() == text);
        known.ok_or_else(|| UnknownEngine { found: text.into() })
    }
}

/// Opens the log in `dir`, which must exist; creates it if there is none.
///
/// # Errors
/// [`Error::OtherEngine`] if another engine's log is there; [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`],
/// [`Error::InUse`] and [`Error::Full`] as they are described there.
pub fn open(dir: &Path, engine: Engine) -> Result<Box<dyn LogStore>> {
    for found in Engine::ALL.into_iter().filter(|found| *found != engine) {
        let path = dir.join(found.file_name());
        if path.try_exists().map_err(Error::io("look for", &path))? {
            return Err(Error::OtherEngine { path, found, wanted: engine });
        }
    }
    let path = dir.join(engine.file_name());
    Ok(match engine {
        Engine::Redb => Box::new(RedbLog::open(path)?),
        Engine::Sled => Box::new(SledLog::open(path)?),
    })
}
