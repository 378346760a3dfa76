//! Archives of trees, and hostile ones.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use tar::{Builder, EntryType, Header};
use tempfile::TempDir;
use warren_archive::{Destination, Error, FileTree, RootDir, extract};
use warren_types::IdRange;

fn root(dir: &TempDir) -> RootDir {
    RootDir::open(dir.path()).unwrap()
}

fn packed(root: &RootDir, path: &str, follow: bool) -> Result<Vec<u8>, Error> {
    let left_out = &mut |file| panic!("{file}");
    FileTree::open(root, Path::new(path), follow)?.write_to(Vec::new(), left_out)
}

fn unpack(dir: &TempDir, path: &str, kind: Destination, archive: &[u8]) -> Result<(), Error> {
    extract(&root(dir), Path::new(path), kind, archive)
}

/// An archive of one entry with any name.
fn entry(name: &str, kind: EntryType, target: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut archive = Builder::new(Vec::new());
    archive.append(&header, content).unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn tree_comes_back_with_links_and_modes() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(from.path().join("a/b")).unwrap();
    fs::write(from.path().join("a/b/one"), "one").unwrap();
    fs::set_permissions(from.path().join("a/b/one"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::hard_link(from.path().join("a/b/one"), from.path().join("a/two")).unwrap();
    symlink("/nowhere", from.path().join("a/link")).unwrap();
    fs::set_permissions(from.path().join("a/b"), fs::Permissions::from_mode(0o500)).unwrap();
    let archive = packed(&root(&from), "/a", false).unwrap();
    for _ in 0..2 {
        unpack(&to, "/", Destination::Named, &archive).unwrap();
    }
    let one = fs::metadata(to.path().join("a/b/one")).unwrap();
    assert_eq!((one.mode() & 0o7777, one.nlink()), (0o750, 2));
    assert_eq!(fs::metadata(to.path().join("a/b")).unwrap().mode() & 0o7777, 0o500);
    assert_eq!(fs::read_link(to.path().join("a/link")).unwrap(), Path::new("/nowhere"));
    unpack(&to, "/renamed", Destination::Named, &archive).unwrap();
    assert_eq!(fs::read_to_string(to.path().join("renamed/two")).unwrap(), "one");
    assert_eq!(fs::metadata(to.path().join("renamed/two")).unwrap().nlink(), 2);
}

#[test]
fn names_of_content_begin_with_a_dot() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let long = "x".repeat(150);
    fs::create_dir_all(from.path().join("a/b")).unwrap();
    fs::write(from.path().join("a/b/one"), "one").unwrap();
    fs::write(from.path().join("a").join(&long), "long").unwrap();
    fs::hard_link(from.path().join("a/b/one"), from.path().join("a/two")).unwrap();
    symlink("b/one", from.path().join("a/link")).unwrap();
    symlink("t".repeat(150), from.path().join("a/far")).unwrap();
    fs::write(from.path().join("a").join("y".repeat(98)), "").unwrap();
    let archive = packed(&root(&from), "/a/.", false).unwrap();
    let names = |archive: &[u8]| {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| entry.unwrap().path_bytes().into_owned());
        entries.collect::<Vec<_>>()
    };
    let found = names(&archive);
    assert!(found.len() == 8 && found.iter().all(|name| name.starts_with(b"./")), "{found:?}");
    let all = names(&packed(&root(&from), "/", false).unwrap());
    assert!(all.iter().all(|name| name.starts_with(b"/")) && all.contains(&b"/a/b/one".to_vec()), "{all:?}");
    unpack(&to, "/new", Destination::Content, &archive).unwrap();
    assert_eq!(fs::read_to_string(to.path().join("new/link")).unwrap(), "one");
    assert_eq!(fs::read_to_string(to.path().join("new").join(long)).unwrap(), "long");
    assert_eq!(fs::metadata(to.path().join("new/two")).unwrap().nlink(), 2);
    assert_eq!(fs::read_link(to.path().join("new/far")).unwrap(), Path::new(&"t".repeat(150)));
}

#[test]
fn links_end_in_the_root() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("passwd"), "inside").unwrap();
    symlink("/passwd", dir.path().join("absolute")).unwrap();
    symlink("../../../../../../../passwd", dir.path().join("up")).unwrap();
    symlink("/proc/self/root/etc/passwd", dir.path().join("magic")).unwrap();
    for path in ["/absolute", "/up", "/../../passwd"] {
        let archive = packed(&root(&dir), path, true).unwrap();
        assert!(archive.windows(6).any(|part| part == b"inside"), "{path}");
    }
    assert!(matches!(packed(&root(&dir), "/magic", true), Err(Error::NotFound { .. })));
    // Extracting follows no link below the destination.
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    let archive = entry("out/file", EntryType::Regular, "", b"x");
    let refused = unpack(&dir, "/", Destination::Into, &archive).unwrap_err();
    assert!(refused.to_string().contains("is a link"), "{refused}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn hostile_archive_is_refused_and_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let whole = entry("file", EntryType::Regular, "", &[7; 5000]);
    let long_name = entry("x", EntryType::GNULongName, "", &vec![b'n'; 2 << 20]);
    for (archive, words) in [
        (entry("../file", EntryType::Regular, "", b"x"), "leads out of the archive"),
        (entry("a/../../file", EntryType::Regular, "", b"x"), "leads out of the archive"),
        (entry("file", EntryType::Link, "../../etc/passwd", b""), "leads out of the archive"),
        (entry("null", EntryType::Char, "", b""), "is a device"),
        (entry("pipe", EntryType::Fifo, "", b""), "is a named pipe"),
        (whole[..2000].to_vec(), "incomplete"),
        (vec![b'x'; 1024], "incomplete or invalid"),
        (long_name, "incomplete or invalid"),
    ] {
        let refused = unpack(&dir, "/", Destination::Into, &archive).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{words}");
    }
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the connection was lost"))
        }
    }
    let refused = extract(&root(&dir), Path::new("/"), Destination::Into, whole[..2000].chain(Failing));
    assert!(refused.unwrap_err().to_string().contains("the connection was lost"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    unpack(&dir, "/", Destination::Into, &entry("/file", EntryType::Regular, "", b"x")).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "x");
}

#[test]
fn owners_are_those_of_the_container() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ids = |first| Some(IdRange { first });
    let owner = |path: &Path| fs::symlink_metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
    fs::create_dir(from.path().join("a")).unwrap();
    fs::write(from.path().join("a/one"), "one").unwrap();
    symlink("one", from.path().join("a/link")).unwrap();
    for (name, id) in [("a", 1_000_000), ("a/one", 1_000_033), ("a/link", 7)] {
        lchown(from.path().join(name), Some(id), Some(id)).unwrap();
    }
    let archive = packed(&root(&from).with_ids(ids(1_000_000)), "/a", false).unwrap();
    // A directory that only the other user may enter: the privileges of root stay.
    fs::set_permissions(to.path(), fs::Permissions::from_mode(0o700)).unwrap();
    lchown(to.path(), Some(2_000_033), Some(2_000_033)).unwrap();
    let into = root(&to).with_ids(ids(2_000_000));
    extract(&into, Path::new("/"), Destination::Named, &archive[..]).unwrap();
    assert_eq!(owner(&to.path().join("a")), (2_000_000, 2_000_000));
    assert_eq!(owner(&to.path().join("a/one")), (2_000_033, 2_000_033));
    assert_eq!(owner(&to.path().join("a/link")), (2_065_534, 2_065_534), "a user that the container lacks");
    // What the archive does not name belongs to the container's root.
    let below = entry("new/file", EntryType::Regular, "", b"x");
    extract(&into, Path::new("/"), Destination::Into, &below[..]).unwrap();
    assert_eq!(owner(&to.path().join("new")), (2_000_000, 2_000_000));
    let mut header = Header::new_gnu();
    header.set_path("far").unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    header.set_uid(70_000);
    header.set_cksum();
    let mut far = Builder::new(Vec::new());
    far.append(&header, &b""[..]).unwrap();
    let far = far.into_inner().unwrap();
    let refused = extract(&into, Path::new("/"), Destination::Into, &far[..]).unwrap_err();
    assert!(matches!(&refused, Error::Refused { .. }) && !to.path().join("far").exists(), "{refused}");
    let own = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(owner(own.path()).0, 0, "only another thread had the identity");
}
