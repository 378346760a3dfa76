use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

use super::*;

async fn filled(root: &Path, image: &Path) -> PathBuf {
    let first = DirContent::new(image);
    LocalVolumeDriver::new(root).ensure(&volume(), &DriverOptions::new(), Some(&first)).await.unwrap()
}

#[tokio::test]
async fn special_files_are_copied_except_devices() {
    let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (at, outside) = (|name: &str| image.path().join(name), dir.path().join("outside"));
    fs::write(&outside, "outside").unwrap();
    symlink(&outside, at("absolute")).unwrap();
    symlink("../../../../../../etc", at("up")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    chown(image.path(), Some(5), Some(6)).unwrap();
    std::os::unix::fs::lchown(at("up"), Some(7), Some(8)).unwrap();
    mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    drop(UnixListener::bind(at("socket")).unwrap());
    mknod(&at("disk"), SFlag::S_IFBLK, Mode::S_IRWXU, makedev(254, 0)).unwrap();
    mknod(&at("zero"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5)).unwrap();
    fs::write(at("program"), "x").unwrap();
    chown(at("program"), Some(33), Some(44)).unwrap();
    fs::set_permissions(at("program"), fs::Permissions::from_mode(0o6711)).unwrap();
    fs::create_dir(at("shared")).unwrap();
    fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(at("a name\nwith \u{1b}[31m all"), "").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for name in ["program", "shared"] {
        File::open(at(name)).unwrap().set_modified(long_ago).unwrap();
    }

    let path = filled(&dir.path().join("volumes"), image.path()).await;
    let looked = |name: &str| fs::symlink_metadata(path.join(name)).unwrap();
    assert_eq!(fs::read_link(path.join("absolute")).unwrap(), outside);
    assert_eq!(fs::read_link(path.join("dangling")).unwrap(), Path::new("nowhere"));
    assert_eq!((looked("up").uid(), looked("up").gid()), (7, 8));
    assert!(looked("pipe").file_type().is_fifo() && looked("socket").file_type().is_socket());
    assert!(!path.join("disk").exists() && !path.join("zero").exists());
    let program = looked("program");
    assert_eq!((program.uid(), program.gid(), program.mode() & 0o7777), (33, 44, 0o6711));
    assert_eq!(looked("shared").mode() & 0o7777, 0o1777);
    assert!(["program", "shared"].iter().all(|name| looked(name).modified().unwrap() == long_ago));
    assert!(path.join("a name\nwith \u{1b}[31m all").exists());
    assert_eq!(fs::metadata(&path).unwrap().uid(), 5);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
}

#[tokio::test]
async fn hard_links_and_holes_are_preserved() {
    let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| image.path().join(name);
    fs::create_dir_all(at("deep/er")).unwrap();
    fs::write(at("one"), "shared").unwrap();
    fs::hard_link(at("one"), at("deep/er/two")).unwrap();
    symlink("one", at("link")).unwrap();
    fs::hard_link(at("link"), at("deep/link")).unwrap();
    let large = File::create(at("large")).unwrap();
    use std::os::unix::fs::FileExt;
    large.set_len(1 << 40).unwrap();
    large.write_all_at(b"middle", 1 << 39).unwrap();
    large.write_all_at(b"end", (1 << 40) - 3).unwrap();
    fs::write(at("empty"), "").unwrap();

    let path = filled(&dir.path().join("volumes"), image.path()).await;
    let inode = |name: &str| fs::symlink_metadata(path.join(name)).unwrap().ino();
    assert_eq!(inode("one"), inode("deep/er/two"));
    assert_eq!(inode("link"), inode("deep/link"));
    let copied = File::open(path.join("large")).unwrap();
    let mut read = [0; 6];
    copied.read_exact_at(&mut read, 1 << 39).unwrap();
    assert_eq!(&read, b"middle");
    copied.read_exact_at(&mut read[..3], (1 << 40) - 3).unwrap();
    assert_eq!(&read[..3], b"end");
    let kept = copied.metadata().unwrap();
    assert!(kept.len() == 1 << 40 && kept.blocks() < 100, "{}", kept.blocks());
    assert_eq!(fs::metadata(path.join("empty")).unwrap().len(), 0);
}

/// Nested directories, deeper than the longest path.
fn nest(root: &Path, depth: u32) {
    let mut directory: std::os::fd::OwnedFd = File::open(root).unwrap().into();
    for _ in 0..depth {
        nix::sys::stat::mkdirat(&directory, "a-directory", Mode::S_IRWXU).unwrap();
        nix::sys::stat::mknodat(&directory, "file", SFlag::S_IFREG, Mode::S_IRWXU, 0).unwrap();
        directory = warren_tree::open_directory(&directory, Path::new("a-directory")).unwrap();
    }
}

#[tokio::test]
async fn deep_tree_uses_bounded_stack_and_fds() {
    let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    nest(image.path(), 300);
    let root = dir.path().join("volumes");
    let path = filled(&root, image.path()).await;
    let deepest: PathBuf = std::iter::repeat_n("a-directory", 300).collect();
    assert!(path.join(&deepest).is_dir() && path.join(deepest.parent().unwrap()).join("file").exists());

    // Only a container can do this: an image is unpacked by paths.
    let driver = LocalVolumeDriver::new(&root);
    driver.remove(&volume()).await.unwrap();
    let path = driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap();
    nest(&path, 20_000);
    fs::create_dir(path.join(".1")).unwrap();
    fs::write(path.join(".1/in the way"), "").unwrap();
    assert!(driver.usage(&volume()).await.unwrap().is_some());
    driver.remove(&volume()).await.unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}

#[tokio::test]
async fn source_symlink_is_not_followed() {
    let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(image.path().join("sub")).unwrap();
    fs::write(image.path().join("sub/file"), "").unwrap();
    let disk = TestDisk::new("1m");
    fs::write(disk.path().join("other"), "").unwrap();
    let to = image.path().join("sub");
    assert!(Command::new("mount").arg("--bind").arg(disk.path()).arg(&to).status().unwrap().success());
    let opened = File::open(image.path()).unwrap();
    fs::create_dir(dir.path().join("to")).unwrap();
    let target = File::open(dir.path().join("to")).unwrap();
    let failure = warren_tree::copy(opened.as_fd(), target.as_fd()).unwrap_err();
    umount2(&to, MntFlags::MNT_DETACH).unwrap();
    assert_eq!((failure.errno, failure.path), (nix::errno::Errno::EXDEV, PathBuf::from("sub")));
}
