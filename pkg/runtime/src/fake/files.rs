//! Images with files, which are in a plain directory.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use warren_image::RunConfig;

use super::{FakeRuntime, State};
use crate::error::Error;
use crate::image_files::{ContainerUser, ImageFiles, bind_of};
use crate::spec::user::RequestedUser;
use crate::{Reference, Result};

impl FakeRuntime {
    /// Adds an image with the files of a directory; other images have no files.
    pub fn add_image_files(&self, image: &Reference, dir: impl Into<PathBuf>) {
        let (mut state, image) = (self.state(), image.to_string());
        state.images.insert(image.clone());
        state.image_files.insert(image, dir.into());
    }
}

impl State {
    /// The directory, and the guard that keeps it.
    fn files_of(&self, image: &Reference) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
        let reference = image.to_string();
        if !self.images.contains(&reference) {
            return Err(Error::ImageMissing { reference });
        }
        if let Some(dir) = self.image_files.get(&reference) {
            return Ok((dir.clone(), None));
        }
        let empty = tempfile::tempdir().map_err(open_error)?;
        Ok((empty.path().to_owned(), Some(empty)))
    }

    pub(super) fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        let (dir, kept) = self.files_of(image)?;
        Ok(ImageFiles::new(File::open(dir).map_err(open_error)?.into(), kept))
    }

    pub(super) fn resolve_user(&self, image: &Reference, user: Option<&str>) -> Result<ContainerUser> {
        let (dir, _kept) = self.files_of(image)?;
        let user = RequestedUser::new(user, Vec::new(), &RunConfig::default()).resolve_in(&bind_of(&dir))?;
        Ok(ContainerUser { uid: user.uid, gid: user.gid })
    }
}

fn open_error(error: io::Error) -> Error {
    Error::Failed { action: "open the files of an image".to_owned(), reason: error.to_string() }
}
