//! Images with files, which lie in a plain directory.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use warren_image::RunConfig;

use super::{Fake, State};
use crate::error::Error;
use crate::image_files::{ImageFiles, RunsAs, plain};
use crate::spec::user::Wanted;
use crate::{Reference, Result};

impl Fake {
    /// Makes an image exist whose files are those in a directory. Without, it has none.
    pub fn add_image_files(&self, image: &Reference, dir: impl Into<PathBuf>) {
        let (mut state, image) = (self.state(), image.to_string());
        state.images.insert(image.clone());
        state.image_files.insert(image, dir.into());
    }
}

impl State {
    /// The directory, and what keeps it there.
    fn files_of(&self, image: &Reference) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
        let reference = image.to_string();
        if !self.images.contains(&reference) {
            return Err(Error::ImageMissing { reference });
        }
        if let Some(dir) = self.image_files.get(&reference) {
            return Ok((dir.clone(), None));
        }
        let empty = tempfile::tempdir().map_err(unopened)?;
        Ok((empty.path().to_owned(), Some(empty)))
    }

    pub(super) fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        let (dir, kept) = self.files_of(image)?;
        Ok(ImageFiles::new(File::open(dir).map_err(unopened)?.into(), kept))
    }

    pub(super) fn runs_as(&self, image: &Reference, user: Option<&str>) -> Result<RunsAs> {
        let (dir, _kept) = self.files_of(image)?;
        let user = Wanted::new(user, Vec::new(), &RunConfig::default()).resolve_in(&plain(&dir))?;
        Ok(RunsAs { uid: user.uid, gid: user.gid })
    }
}

fn unopened(error: io::Error) -> Error {
    Error::Failed { action: "open the files of an image".to_owned(), reason: error.to_string() }
}
