//! Metadata of a file: owner, mode, extended attributes, times.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, UtimensatFlags, fchmod, fchmodat, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};

use super::xattr;

fn owner(stat: &FileStat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn times(stat: &FileStat) -> (TimeSpec, TimeSpec) {
    (TimeSpec::new(stat.st_atime, stat.st_atime_nsec), TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec))
}

/// Copies the metadata of one open file or directory to another. The order matters: a change of the owner
/// clears mode bits and attributes, and every change alters the times.
///
/// # Errors
/// The first that the kernel refuses.
pub fn copy_attributes(from: impl AsFd, stat: &FileStat, to: impl AsFd) -> nix::Result<()> {
    let ((uid, gid), (accessed, changed)) = (owner(stat), times(stat));
    fchown(&to, uid, gid)?;
    xattr::copy(from, &to)?;
    fchmod(&to, Mode::from_bits_truncate(stat.st_mode))?;
    futimens(&to, &accessed, &changed)
}

/// As [`copy_attributes`], for an entry that cannot be opened: a link, a pipe, a socket.
pub(super) fn copy_attributes_at(stat: &FileStat, to: impl AsFd, name: &OsStr) -> nix::Result<()> {
    let ((uid, gid), (accessed, changed)) = (owner(stat), times(stat));
    fchownat(&to, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if super::file_type(stat) != nix::sys::stat::SFlag::S_IFLNK {
        // It was just created in a private directory, so there is no link to follow.
        fchmodat(&to, name, Mode::from_bits_truncate(stat.st_mode), FchmodatFlags::FollowSymlink)?;
    }
    utimensat(&to, name, &accessed, &changed, UtimensatFlags::NoFollowSymlink)
}
