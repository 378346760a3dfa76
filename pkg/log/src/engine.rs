//! Which engine keeps a log, and opening the log of a directory.

use std::{
    fmt::{self, Display},
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{Error, LogStore, Owner, RedbLog, Result, SledLog};

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

    /// Where its log is in the directory `dir`, or would be.
    pub fn path_in(self, dir: &Path) -> PathBuf {
        dir.join(match self {
            Engine::Redb => "raft.redb",
            Engine::Sled => "raft.sled",
        })
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

/// The log in `dir`, whichever engine keeps it.
pub fn log_in(dir: &Path) -> Option<PathBuf> {
    Engine::ALL.into_iter().map(|engine| engine.path_in(dir)).find(|path| path.exists())
}

/// Opens the log of `owner` in `dir`, which must exist; creates it if there is none.
///
/// # Errors
/// [`Error::OtherEngine`] if another engine's log is there; [`Error::OtherOwner`] if it is another member's;
/// [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`], [`Error::InUse`] and [`Error::Full`] as they are described
/// there.
pub fn open(dir: &Path, engine: Engine, owner: Owner) -> Result<Box<dyn LogStore>> {
    for found in Engine::ALL.into_iter().filter(|found| *found != engine) {
        let path = found.path_in(dir);
        if path.try_exists().map_err(Error::io("look for", &path))? {
            return Err(Error::OtherEngine { path, found, wanted: engine });
        }
    }
    let path = engine.path_in(dir);
    Ok(match engine {
        Engine::Redb => Box::new(RedbLog::open_of(path, owner)?),
        Engine::Sled => Box::new(SledLog::open_of(path, owner)?),
    })
}
