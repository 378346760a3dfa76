//! Options of a local volume: owner and permissions.

use std::os::fd::AsFd;

use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, fchown};
use warren_types::{Volume, VolumeDriver, VolumeName};

use crate::error::Error;
use crate::{DriverOptions, Result};

/// Permission bits of a volume without the option `mode`.
pub(crate) const DEFAULT_MODE: u32 = 0o755;

/// Owner and mode, each if configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ownership {
    pub uid: Option<Uid>,
    pub gid: Option<Gid>,
    pub mode: Option<Mode>,
}

impl Ownership {
    /// # Errors
    /// [`Error::Options`] with all violations.
    pub fn parse(volume: &VolumeName, options: &DriverOptions) -> Result<Self> {
        let checked = Volume::validate(VolumeDriver::Local, options).into_result(());
        checked.map_err(|wrong| Error::Options { volume: volume.clone(), violations: wrong })?;
        let number =
            |key: &str, radix| options.get(key).and_then(|text| u32::from_str_radix(text, radix).ok());
        Ok(Self {
            uid: number("uid", 10).map(Uid::from_raw),
            gid: number("gid", 10).map(Gid::from_raw),
            mode: number("mode", 8).map(Mode::from_bits_truncate),
        })
    }

    /// Sets what is configured on an open directory.
    pub fn set_on(&self, directory: impl AsFd) -> nix::Result<()> {
        fchown(&directory, self.uid, self.gid)?;
        self.mode.map_or(Ok(()), |mode| fchmod(&directory, mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<Ownership> {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Ownership::parse(&"data".parse().unwrap(), &options)
    }

    #[test]
    fn owner_and_mode_are_parsed() {
        assert_eq!(parse(&[]).unwrap(), Ownership::default());
        let owned = parse(&[("uid", "1000"), ("gid", "7"), ("mode", "2750")]).unwrap();
        assert_eq!((owned.uid, owned.gid), (Some(Uid::from_raw(1000)), Some(Gid::from_raw(7))));
        assert_eq!(owned.mode.unwrap().bits(), 0o2750);
    }

    #[test]
    fn invalid_options_are_all_reported() {
        let error = parse(&[("size", "1"), ("mode", "9")]).unwrap_err();
        assert!(matches!(&error, Error::Options { violations, .. } if violations.0.len() == 2), "{error}");
        assert!(!error.is_transient() && error.to_string().contains("options[\"size\"]"), "{error}");
    }
}
