use std::time::{Duration, Instant};

use super::*;

const FILES: usize = 200;
/// Directory of the child process of the test below.
const CHILD_DIR_ENV: &str = "WARREN_VOLUME_TEST_CHILD";

fn image(dir: &Path) {
    fs::create_dir_all(dir.join("sub")).unwrap();
    for number in 0..FILES {
        fs::write(dir.join(format!("sub/{number}")), number.to_string()).unwrap();
        fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
    }
    std::os::unix::fs::chown(dir, Some(70), Some(70)).unwrap();
}

fn assert_whole(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    for number in 0..FILES {
        for name in [format!("sub/{number}"), number.to_string()] {
            assert_eq!(fs::read_to_string(path.join(name)).unwrap(), number.to_string());
        }
    }
    assert_eq!(fs::read_dir(path).unwrap().count(), FILES + 1);
    assert_eq!(fs::metadata(path).unwrap().uid(), 70);
}

#[tokio::test]
async fn interrupted_steps_are_finished_or_undone() {
    let dir = tempfile::tempdir().unwrap();
    let (from, root) = (dir.path().join("image"), dir.path().join("volumes"));
    image(&from);
    let make = |name: &str, files: &[&str]| {
        for file in files {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join(file), "half").unwrap();
        }
    };
    // Volumes in creation, in filling, and in deletion; each handled by a sweep, and by a caller that needs
    // the volume before any sweep.
    for sweeps in [true, false] {
        let driver = LocalVolumeDriver::new(&root);
        make(".new-data", &["x"]);
        make(".copy-data", &["x"]);
        make(".gone-data", &["x"]);
        if sweeps {
            driver.sweep().await.unwrap();
            assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        }
        let path =
            driver.ensure(&volume(), &DriverOptions::new(), Some(&DirContent::new(&from))).await.unwrap();
        assert_whole(&path);
        driver.remove(&volume()).await.unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    }
    // In filling, while a container wrote a file that the image has as well.
    for sweeps in [true, false] {
        let driver = LocalVolumeDriver::new(&root);
        make("data", &["moved", "both"]);
        make(".full-data", &["both", "to move"]);
        if sweeps {
            driver.sweep().await.unwrap();
        }
        fs::write(root.join("data/both"), "the container's").unwrap();
        let path = driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 3);
        assert_eq!(fs::read_to_string(path.join("both")).unwrap(), "the container's");
        assert_eq!(fs::read_to_string(path.join("to move")).unwrap(), "half");
        assert_eq!(leftovers(&root), [] as [&str; 0]);
        driver.remove(&volume()).await.unwrap();
    }
    // Its volume was deleted meanwhile, up to the rename.
    make(".full-data", &["x"]);
    LocalVolumeDriver::new(&root).sweep().await.unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}

#[tokio::test]
async fn sweep_skips_locked_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let driver = LocalVolumeDriver::new(dir.path());
    fs::create_dir(dir.path().join(".copy-data")).unwrap();
    let turn = driver.locks.lock(&volume()).await;
    driver.sweep().await.unwrap();
    assert_eq!(leftovers(dir.path()), [".copy-data"]);
    drop(turn);
    driver.sweep().await.unwrap();
    assert_eq!(leftovers(dir.path()), [] as [&str; 0]);
}

/// Creates and deletes the volume until it is killed. Does nothing unless it is a child.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR_ENV).map(PathBuf::from) else { return };
    let driver = LocalVolumeDriver::new(dir.join("volumes"));
    let first = DirContent::new(dir.join("image"));
    fs::write(dir.join("ready"), "").unwrap();
    loop {
        driver.ensure(&volume(), &DriverOptions::new(), Some(&first)).await.unwrap();
        driver.remove(&volume()).await.unwrap();
    }
}

#[tokio::test]
async fn killed_process_leaves_no_partial_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (from, root) = (dir.path().join("image"), dir.path().join("volumes"));
    image(&from);
    let mut half_done = 0;
    for round in 0..24u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "local::tests::crashes::child"])
            .env(CHILD_DIR_ENV, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !dir.path().join("ready").exists() {
            assert!(Instant::now() < deadline, "the child does not begin");
            std::thread::yield_now();
        }
        // The time of the kill is random; this only spreads it.
        let until = Instant::now() + Duration::from_micros(2900 * round);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_file(dir.path().join("ready")).unwrap();
        half_done += usize::from(root.exists() && !leftovers(&root).is_empty());
        let driver = LocalVolumeDriver::new(&root);
        if round % 2 == 0 {
            driver.sweep().await.unwrap();
            if root.exists() {
                assert_eq!(leftovers(&root), [] as [&str; 0]);
            }
            let count = fs::read_dir(root.join("data")).map_or(0, Iterator::count);
            assert!(count == 0 || count == FILES + 1, "{count}");
        }
        let path =
            driver.ensure(&volume(), &DriverOptions::new(), Some(&DirContent::new(&from))).await.unwrap();
        assert_whole(&path);
        driver.remove(&volume()).await.unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    }
    assert!(half_done > 0, "no child was killed in the middle of anything");
}
