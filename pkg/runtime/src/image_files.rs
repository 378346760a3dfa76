//! Access to the files of an image without a container.

use std::any::Any;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::{fmt, thread};

use containerd_client::types::Mount;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// How often a path is resolved again while other processes rename or mount.
const MAX_RETRIES: usize = 128;
/// Read-only, nosuid, nodev.
const FLAGS: MsFlags = MsFlags::MS_RDONLY
    .union(MsFlags::MS_NOSUID)
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC)
    .union(MsFlags::MS_NOATIME);

/// The files of an image as a new container of it has them, read-only, until this is dropped. They are
/// mounted in no namespace that others can see, and are released when this process ends in any way.
pub struct ImageFiles {
    root: OwnedFd,
    /// Dropped after the files are closed.
    _guard: Box<dyn Any + Send + Sync>,
}

/// User and group of a container's command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

impl fmt::Debug for ImageFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFiles").field("root", &self.root).finish_non_exhaustive()
    }
}

impl ImageFiles {
    pub(crate) fn new(root: OwnedFd, held: impl Any + Send + Sync) -> Self {
        Self { root, _guard: Box::new(held) }
    }

    /// Open directory with the image's files.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens the directory at an absolute path of the image; links are followed within the image only. `None`
    /// if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn directory(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let mut opened = openat2(&self.root, path, how);
        // The kernel cannot resolve `..` while any process renames or mounts something.
        for _ in 0..MAX_RETRIES {
            match opened {
                Err(Errno::EAGAIN) => opened = openat2(&self.root, path, how),
                _ => break,
            }
        }
        match opened {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Mounts of a snapshot whose files are in a plain directory: for a fake.
#[cfg(feature = "testing")]
pub(crate) fn bind_of(dir: &Path) -> Vec<Mount> {
    let source = dir.display().to_string();
    vec![Mount { r#type: "bind".to_owned(), source, ..Default::default() }]
}

/// Opens the root directory of a snapshot. `place` is any directory: the snapshot is mounted over it in a
/// mount namespace of a short-lived thread, so that no other process sees the mount and nothing must be
/// unmounted. The mount lives as long as the open directory.
pub(crate) fn open(mounts: &[Mount], place: &Path) -> io::Result<OwnedFd> {
    let [found] = mounts else {
        return Err(io::Error::other(format!("expected one mount, found {}", mounts.len())));
    };
    let open = || {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        mount_snapshot(found, place)?;
        Ok::<_, io::Error>(OwnedFd::from(File::open(place)?))
    };
    thread::scope(|scope| {
        let opening = thread::Builder::new().name("image-files".to_owned()).spawn_scoped(scope, open)?;
        opening.join().expect("a few calls of the kernel do not panic")
    })
}

fn mount_snapshot(found: &Mount, place: &Path) -> io::Result<()> {
    match found.r#type.as_str() {
        "bind" => {
            mount(Some(Path::new(&found.source)), place, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | FLAGS;
            Ok(mount(None::<&str>, place, None::<&str>, again, None::<&str>)?)
        }
        "overlay" => {
            let (common, options) = overlay(&found.options)?;
            // This thread has its own file system attributes.
            nix::unistd::chdir(&common)?;
            Ok(mount(Some("overlay"), place, Some("overlay"), FLAGS, Some(options.as_str()))?)
        }
        other => Err(io::Error::new(
            ErrorKind::Unsupported,
            format!("snapshots of type {other:?} cannot be opened; use the snapshotter overlayfs"),
        )),
    }
}

/// The common directory of the layers of an overlay, and their paths relative to it, top first.
pub(crate) fn relative_layers(options: &[String]) -> io::Result<(PathBuf, Vec<String>)> {
    let missing = || io::Error::other("the snapshot has no layers");
    let lower = options.iter().find_map(|option| option.strip_prefix("lowerdir=")).ok_or_else(missing)?;
    let layers: Vec<&Path> = lower.split(':').map(Path::new).collect();
    let common = layers.iter().skip(1).fold(layers[0].to_owned(), |common, layer| {
        let same = common.components().zip(layer.components()).take_while(|(one, other)| one == other);
        same.map(|(part, _)| part).collect::<Vec<Component<'_>>>().into_iter().collect()
    });
    let names = layers.iter().map(|layer| match layer.strip_prefix(&common) {
        Ok(rest) if rest.as_os_str().is_empty() => ".".to_owned(),
        Ok(rest) => rest.display().to_string(),
        Err(_) => layer.display().to_string(),
    });
    let names = names.collect();
    Ok((common, names))
}

/// Options of a read-only overlay, with layers relative to their common directory: the kernel takes one page
/// of options, which is too small for the full paths of many layers.
fn overlay(options: &[String]) -> io::Result<(PathBuf, String)> {
    let (common, names) = relative_layers(options)?;
    let lower = format!("lowerdir={}", names.join(":"));
    // Flags are passed separately, and nothing is written.
    let other = options.iter().filter(|option| {
        let name = option.split('=').next().unwrap_or_default();
        !["lowerdir", "upperdir", "workdir", "ro", "rw"].contains(&name)
    });
    let all: Vec<&str> = other.map(String::as_str).chain([lower.as_str()]).collect();
    Ok((common, all.join(",")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn overlay_layers_use_common_prefix() {
        let of = |words: &[&str]| overlay(&strings(words)).unwrap();
        let (common, options) = of(&["index=off", "lowerdir=/c/snapshots/12/fs:/c/snapshots/1/fs", "ro"]);
        assert_eq!(
            (common.to_str(), options.as_str()),
            (Some("/c/snapshots"), "index=off,lowerdir=12/fs:1/fs")
        );
        assert_eq!(of(&["lowerdir=/a/fs:/b/fs"]), (PathBuf::from("/"), "lowerdir=a/fs:b/fs".to_owned()));
        assert_eq!(of(&["lowerdir=/a"]), (PathBuf::from("/a"), "lowerdir=.".to_owned()));
        assert!(overlay(&strings(&["ro"])).is_err());
    }

    fn mount_of(kind: &str, source: &Path, options: &[&str]) -> Vec<Mount> {
        let source = source.display().to_string();
        vec![Mount { r#type: kind.to_owned(), source, options: strings(options), ..Default::default() }]
    }

    #[test]
    fn layers_are_merged_and_mount_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let layers: Vec<PathBuf> = (0..120)
            .map(|number| dir.path().join(format!("a-rather-long-name-of-a-layer-{number}")))
            .collect();
        for (number, layer) in layers.iter().enumerate() {
            fs::create_dir_all(layer.join("etc")).unwrap();
            fs::write(layer.join("etc/top"), number.to_string()).unwrap();
            fs::write(layer.join(format!("etc/{number}")), "").unwrap();
        }
        let names: Vec<&str> = layers.iter().map(|layer| layer.to_str().unwrap()).collect();
        let lower = format!("lowerdir={}", names.join(":"));
        assert!(lower.len() > 4096);
        let root = open(&mount_of("overlay", dir.path(), &["index=off", &lower]), dir.path()).unwrap();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
        assert!(!dir.path().join("etc").exists(), "the place is as it was");
        let files = ImageFiles::new(root, ());
        let etc = files.directory(Path::new("/etc")).unwrap().unwrap();
        let seen = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&etc)));
        assert_eq!(fs::read_dir(&seen).unwrap().count(), 121);
        assert_eq!(fs::read_to_string(seen.join("top")).unwrap(), "0");
        let error = fs::write(seen.join("top"), "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    }

    #[test]
    fn links_resolve_within_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(image.join("data/sub")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(image.join("file"), "").unwrap();
        for (to, name) in
            [("/data", "absolute"), ("../../../data", "up"), ("../outside", "out"), ("loop", "loop")]
        {
            std::os::unix::fs::symlink(to, image.join(name)).unwrap();
        }
        let files =
            ImageFiles::new(open(&mount_of("bind", &image, &["ro", "rbind"]), dir.path()).unwrap(), ());
        let has = |path: &str| files.directory(Path::new(path)).unwrap().is_some();
        for path in ["/", "/data/sub", "/absolute/sub", "/up/sub", "data", "/data/../../data"] {
            assert!(has(path), "{path}");
        }
        for path in ["/out", "/file", "/none", "/loop", "/file/x"] {
            assert!(!has(path), "{path}");
        }
        let made = nix::sys::stat::mkdirat(files.root(), "new", nix::sys::stat::Mode::S_IRWXU);
        assert_eq!(made, Err(Errno::EROFS));
    }

    #[test]
    fn unsupported_mount_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let error = open(&mount_of("ext4", dir.path(), &[]), dir.path()).unwrap_err();
        assert!(error.to_string().contains("use the snapshotter overlayfs"), "{error}");
        assert!(open(&[], dir.path()).is_err());
    }
}
