//! The behaviour that every volume backend must have, for its tests: a failure panics.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use warren_types::VolumeName;

use crate::error::Error;
use crate::{ContentDir, ContentError, DriverOptions, InitialContent, VolumeBackend};

/// Checks a backend without volumes against the contract of [`VolumeBackend`], and leaves none. Needs
/// root.
///
/// # Panics
/// On a violation of the contract.
pub async fn suite(driver: &dyn VolumeBackend) {
    assert_eq!(list(driver).await, [] as [&str; 0]);
    volume_is_created_once_and_keeps_data(driver).await;
    options_set_owner_and_mode(driver).await;
    empty_volume_is_filled_once(driver).await;
    unreadable_content_leaves_volume_empty(driver).await;
    concurrent_creates_make_one_volume(driver).await;
    removal_does_not_follow_links(driver).await;
    driver.sweep().await.expect("there is nothing to do");
    assert_eq!(list(driver).await, [] as [&str; 0]);
}

/// A directory as initial content that counts how often it was opened.
pub struct DirContent {
    /// Path of the directory.
    pub path: PathBuf,
    /// Number of calls to `open`.
    pub open_count: AtomicU32,
}

impl DirContent {
    /// The content of the directory at `path`; a missing one is no content.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), open_count: AtomicU32::new(0) }
    }
}

#[async_trait]
impl InitialContent for DirContent {
    async fn open(&self) -> Result<Option<ContentDir>, ContentError> {
        self.open_count.fetch_add(1, Ordering::Relaxed);
        let directory = File::open(&self.path).ok();
        Ok(directory.map(|directory| ContentDir { directory: directory.into(), guard: Box::new(()) }))
    }
}

struct BrokenContent {
    transient: bool,
}

#[async_trait]
impl InitialContent for BrokenContent {
    async fn open(&self) -> Result<Option<ContentDir>, ContentError> {
        Err(ContentError { reason: "it is broken".to_owned(), transient: self.transient })
    }
}

fn name(text: &str) -> VolumeName {
    text.parse().expect("the suite's names are volume names")
}

fn options(pairs: &[(&str, &str)]) -> DriverOptions {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn list(driver: &dyn VolumeBackend) -> Vec<String> {
    driver.list().await.expect("volumes can be listed").iter().map(ToString::to_string).collect()
}

async fn made(
    driver: &dyn VolumeBackend,
    volume: &str,
    pairs: &[(&str, &str)],
    first: Option<&dyn InitialContent>,
) -> PathBuf {
    driver.ensure(&name(volume), &options(pairs), first).await.expect("the volume can be made")
}

async fn removed(driver: &dyn VolumeBackend, volume: &str) {
    for _twice in 0..2 {
        driver.remove(&name(volume)).await.expect("the volume can be removed");
    }
}

fn owned(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).expect("it is there");
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(path).expect("the file is there")
}

fn write(path: PathBuf, text: &str) {
    fs::write(path, text).expect("the directory can be written to");
}

fn image() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let sub = dir.path().join("sub");
    fs::create_dir(&sub).expect("it is empty");
    write(sub.join("file"), "from the image");
    chown(sub.join("file"), Some(33), Some(44)).expect("this is root");
    symlink("/etc/passwd", dir.path().join("link")).expect("it is empty");
    chown(dir.path(), Some(70), Some(71)).expect("this is root");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2750)).expect("this is root");
    dir
}

async fn volume_is_created_once_and_keeps_data(driver: &dyn VolumeBackend) {
    assert_eq!(driver.usage(&name("data")).await.expect("nothing is wrong"), None);
    let path = made(driver, "data", &[], None).await;
    assert!(path.is_absolute() && path.is_dir());
    assert_eq!(owned(&path), (0, 0, 0o755));
    let before = driver.usage(&name("data")).await.expect("it is there").expect("it is there");
    write(path.join("file"), &"x".repeat(100_000));
    let image = image();
    let first = DirContent::new(image.path());
    assert_eq!(made(driver, "data", &[("mode", "700")], Some(&first)).await, path);
    assert_eq!(first.open_count.load(Ordering::Relaxed), 0, "it is not empty");
    assert_eq!(owned(&path).2, 0o755, "a volume that has something is as its tasks left it");
    assert_eq!(read(path.join("file")).len(), 100_000);
    assert!(!path.join("sub").exists());
    let after = driver.usage(&name("data")).await.expect("it is there").expect("it is there");
    assert!(after.0 >= before.0 + 100_000, "{after:?} after {before:?}");
    made(driver, "Another.one_2", &[], None).await;
    assert_eq!(list(driver).await, ["Another.one_2", "data"]);
    removed(driver, "Another.one_2").await;
    removed(driver, "data").await;
}

async fn options_set_owner_and_mode(driver: &dyn VolumeBackend) {
    let path = made(driver, "owned", &[("uid", "1000"), ("mode", "1770")], None).await;
    assert_eq!(owned(&path), (1000, 0, 0o1770));
    removed(driver, "owned").await;
    let image = image();
    let first = DirContent::new(image.path());
    let path = made(driver, "owned", &[("gid", "9")], Some(&first)).await;
    assert_eq!(owned(&path), (70, 9, 0o2750), "what is not said is the image's");
    removed(driver, "owned").await;
    let refused = driver.ensure(&name("owned"), &options(&[("size", "1G")]), None).await;
    assert!(matches!(&refused, Err(Error::Options { .. })), "{refused:?}");
    assert_eq!(list(driver).await, [] as [&str; 0], "a refusal makes nothing");
}

async fn empty_volume_is_filled_once(driver: &dyn VolumeBackend) {
    let image = image();
    let absent = DirContent::new(image.path().join("absent"));
    let path = made(driver, "first", &[], Some(&absent)).await;
    assert_eq!((owned(&path), absent.open_count.load(Ordering::Relaxed)), ((0, 0, 0o755), 1));
    let first = DirContent::new(image.path());
    // An open directory sees the content that is added later.
    let held = File::open(&path).expect("it is there");
    assert_eq!(made(driver, "first", &[], Some(&first)).await, path);
    let same = |path: &Path| fs::metadata(path).expect("it is there").ino();
    assert_eq!(held.metadata().expect("it is open").ino(), same(&path));
    assert_eq!(owned(&path), (70, 71, 0o2750));
    assert_eq!(owned(&path.join("sub/file")), (33, 44, 0o644));
    assert_eq!(read(path.join("sub/file")), "from the image");
    assert_eq!(fs::read_link(path.join("link")).expect("a link stays one"), Path::new("/etc/passwd"));
    write(path.join("sub/file"), "changed");
    assert_eq!(made(driver, "first", &[], Some(&first)).await, path);
    assert_eq!(
        (read(path.join("sub/file")).as_str(), first.open_count.load(Ordering::Relaxed)),
        ("changed", 1)
    );
    removed(driver, "first").await;
    assert_eq!(read(image.path().join("sub/file")), "from the image");
}

async fn unreadable_content_leaves_volume_empty(driver: &dyn VolumeBackend) {
    for transient in [true, false] {
        let error =
            driver.ensure(&name("broken"), &DriverOptions::new(), Some(&BrokenContent { transient })).await;
        let error = error.expect_err("its content cannot be read");
        assert!(matches!(error, Error::Content { .. }) && error.is_transient() == transient, "{error}");
    }
    let image = image();
    let path = made(driver, "broken", &[], Some(&DirContent::new(image.path()))).await;
    assert_eq!(read(path.join("sub/file")), "from the image");
    removed(driver, "broken").await;
}

async fn concurrent_creates_make_one_volume(driver: &dyn VolumeBackend) {
    let image = image();
    let first = DirContent::new(image.path());
    let one = || made(driver, "many", &[], Some(&first));
    let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
    assert!(a == b && b == c && c == d);
    assert_eq!(first.open_count.load(Ordering::Relaxed), 1);
    assert_eq!(read(a.join("sub/file")), "from the image");
    removed(driver, "many").await;
}

async fn removal_does_not_follow_links(driver: &dyn VolumeBackend) {
    let outside = image();
    let path = made(driver, "gone", &[], None).await;
    symlink(outside.path(), path.join("out")).expect("it is empty");
    symlink(outside.path().join("sub/file"), path.join("file")).expect("it is empty");
    removed(driver, "gone").await;
    assert!(!path.exists());
    assert_eq!(read(outside.path().join("sub/file")), "from the image");
    let path = made(driver, "gone", &[], None).await;
    assert_eq!(fs::read_dir(&path).expect("it is a directory").count(), 0, "nothing comes back");
    removed(driver, "gone").await;
}
