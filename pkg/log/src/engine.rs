//! Selection of the storage engine.

use std::{
    fmt::{self, Display},
    path::{Path, PathBuf},
    str::FromStr,
};

/// The storage engine of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LogEngine {
    /// One redb file.
    #[default]
    Redb,
    /// A sled directory.
    Sled,
}

impl LogEngine {
    /// All engines.
    pub const ALL: [LogEngine; 2] = [LogEngine::Redb, LogEngine::Sled];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            LogEngine::Redb => "redb",
            LogEngine::Sled => "sled",
        }
    }

    /// Path of its log in the directory `dir`, existing or not.
    pub fn path_in(self, dir: &Path) -> PathBuf {
        dir.join(match self {
            LogEngine::Redb => "raft.redb",
            LogEngine::Sled => "raft.sled",
        })
    }
}

impl Display for LogEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown engine name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown log engine `{found}`: use redb or sled")]
pub struct UnknownLogEngine {
    /// The rejected text.
    pub found: String,
}

impl FromStr for LogEngine {
    type Err = UnknownLogEngine;

    fn from_str(text: &str) -> Result<Self, UnknownLogEngine> {
        let known = LogEngine::ALL.into_iter().find(|engine| engine.name() == text);
        known.ok_or_else(|| UnknownLogEngine { found: text.into() })
    }
}

/// Path of the log in `dir`, of any engine.
pub fn find_log(dir: &Path) -> Option<PathBuf> {
    LogEngine::ALL.into_iter().map(|engine| engine.path_in(dir)).find(|path| path.exists())
}
