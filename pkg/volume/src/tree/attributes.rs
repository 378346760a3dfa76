//! What a file is beside its content: owner, mode, extended attributes, times.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, UtimensatFlags, fchmod, fchmodat, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};

use super::xattr;
use crate::options::Owned;

fn owner(stat: &FileStat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn times(stat: &FileStat) -> (TimeSpec, TimeSpec) {
    (TimeSpec::new(stat.st_atime, stat.st_atime_nsec), TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec))
}

/// Makes an open file or directory what another one is. In this order: a change of the owner takes away what follows
/// it, and every other change alters the times.
pub(crate) fn take_after(from: impl AsFd, stat: &FileStat, to: impl AsFd) -> nix::Result<()> {
    let ((uid, gid), (accessed, changed)) = (owner(stat), times(stat));
    fchown(&to, uid, gid)?;
    xattr::copy(from, &to)?;
    fchmod(&to, Mode::from_bits_truncate(stat.st_mode))?;
    futimens(&to, &accessed, &changed)
}

/// As [`take_after`], for an entry that cannot be opened: a link, a pipe, a socket.
pub(super) fn take_after_unopened(stat: &FileStat, to: impl AsFd, name: &OsStr) -> nix::Result<()> {
    let ((uid, gid), (accessed, changed)) = (owner(stat), times(stat));
    fchownat(&to, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if super::kind(stat) != nix::sys::stat::SFlag::S_IFLNK {
        // It was made a moment ago where nobody else comes, so that there is no link to follow.
        fchmodat(&to, name, Mode::from_bits_truncate(stat.st_mode), FchmodatFlags::FollowSymlink)?;
    }
    utimensat(&to, name, &accessed, &changed, UtimensatFlags::NoFollowSymlink)
}

/// Gives an open directory the owner and mode that somebody wants.
pub(crate) fn own(directory: impl AsFd, owned: &Owned) -> nix::Result<()> {
    fchown(&directory, owned.uid, owned.gid)?;
    owned.mode.map_or(Ok(()), |mode| fchmod(&directory, mode))
}
