//! Starts of a manager whose directory has a missing, empty, older or foreign file: it refuses to start and
//! changes nothing, or it is the same manager as before.

mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use warren_bootstrap::member_identity::{self, LocalMemberStatus};
use warren_log::LogEngine;
use warren_manager::ManagerTuning;
use warren_manager::config::CERTIFICATE_CHECK_INTERVAL;
use warren_store::raft::open::ReplicaTuning;
use warren_store::raft::snapshot::SnapshotThresholds;
use warren_testkit::scratch::ScratchDir;

use self::table::{DamageCase, FileDamage, ROWS, StartExpectation};
use super::group::ManagerGroup;
use super::host::ManagerHost;
use crate::fixture::ManagerFixture;
use crate::restart::refuses;

/// A snapshot from time to time, and some log after it.
const SNAPSHOTS: ManagerTuning = ManagerTuning {
    replica: ReplicaTuning {
        snapshot_thresholds: SnapshotThresholds { bytes: 1 << 20, entries: 40 },
        kept_entries: 10,
        history_changes: 1 << 16,
    },
    certificate_check_interval: CERTIFICATE_CHECK_INTERVAL,
};
/// The host under test: it joined, and has the member number 2.
const SUBJECT: usize = 1;
const MEMBER: u64 = 2;

/// Every file below a directory, by its relative path.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn collect(root: &Path, directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, found);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    if directory.exists() {
        collect(directory, directory, &mut found);
    }
    found
}

/// Copies a file or a directory with its permissions, replacing `to`.
fn copy(from: &Path, to: &Path) {
    remove(to);
    if !from.exists() {
        return;
    }
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success(), "cp {} {}", from.display(), to.display());
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else if path.exists() {
        fs::remove_file(path).unwrap();
    }
}

/// The snapshot below this data directory that its log refers to: the only one after a start.
fn snapshot(data_dir: &Path) -> PathBuf {
    let found = fs::read_dir(data_dir.join("manager/snapshots")).unwrap().map(|entry| entry.unwrap().path());
    let found = found.filter(|path| path.extension().is_none()).max();
    found.expect("a snapshot is due after these writes")
}

/// The path of a row's file below this data directory.
fn path_of(row: &DamageCase, data_dir: &Path, engine: LogEngine) -> PathBuf {
    match row.file {
        "snapshot" => snapshot(data_dir),
        "log" => data_dir.join("manager").join(format!("raft.{engine}")),
        "receipt" => data_dir.join("manager").join(format!("raft.{engine}.receipt")),
        file => data_dir.join(file),
    }
}

/// The directories of stopped managers.
struct DirectoryCopies {
    scratch: ScratchDir,
    group: ManagerGroup,
    other: ManagerGroup,
    engine: LogEngine,
}

async fn founded(engine: LogEngine) -> ManagerGroup {
    let mut host = ManagerHost::new("m1", SNAPSHOTS);
    (host.engine, host.hybrid) = (engine, true);
    let mut group = ManagerGroup::founded_on(host).await;
    group.add("m2").await;
    group
}

/// Stops the managers once their directories are complete.
async fn stop(group: &mut ManagerGroup) {
    for host in &group.hosts {
        host.address_recorded().await;
    }
    // The last one records its address with the help of the others.
    for host in &mut group.hosts {
        host.stop().await;
    }
}

impl DirectoryCopies {
    /// Of the second of three managers: its present state `now`, and an earlier one `before`.
    async fn of(engine: LogEngine) -> Self {
        let scratch = ScratchDir::new();
        let mut other = founded(engine).await;
        Self::write(&other, "other", 60).await;
        stop(&mut other).await;
        let mut group = founded(engine).await;
        group.add("m3").await;
        group.all_vote().await;
        Self::write(&group, "early", 60).await;
        stop(&mut group).await;
        copy(&group.hosts[SUBJECT].data_dir(), &scratch.path().join("before"));
        for host in &mut group.hosts {
            host.start(false).await.unwrap();
        }
        group.leader().await;
        Self::write(&group, "late", 70).await;
        stop(&mut group).await;
        let subject = &mut group.hosts[SUBJECT];
        // Removes a snapshot that its log did not know when it stopped, if there is one.
        subject.start(false).await.unwrap();
        subject.drop_manager().await;
        copy(&subject.data_dir(), &scratch.path().join("now"));
        Self { scratch, group, other, engine }
    }

    /// Creates services until every manager has them.
    async fn write(group: &ManagerGroup, name: &str, count: usize) {
        let leader = group.leader().await;
        for number in 0..count {
            group.create(leader, &format!("{name}{number}")).await.unwrap();
        }
        let index = group.hosts[leader].manager().store().read().index;
        for host in &group.hosts {
            let deadline = tokio::time::Instant::now() + crate::fixture::WAIT_DEADLINE;
            let store = host.manager().store();
            assert!(store.wait_until(|published| published.index >= index, deadline).await);
        }
    }

    fn host(&mut self) -> &mut ManagerHost {
        &mut self.group.hosts[SUBJECT]
    }

    /// The subject is in the state `now`.
    fn reset(&mut self) {
        let now = self.scratch.path().join("now");
        copy(&now, &self.host().data_dir());
    }

    fn damage(&mut self, row: &DamageCase, path: &Path) {
        let source = match row.damage {
            FileDamage::Missing => return remove(path),
            FileDamage::Empty if path.is_dir() => {
                return fs::read_dir(path).unwrap().for_each(|entry| {
                    remove(&entry.unwrap().path());
                });
            }
            FileDamage::Empty => {
                return fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
            }
            FileDamage::Leftover => return fs::write(path, "not of this manager\n").unwrap(),
            FileDamage::OtherMember => self.group.hosts[2].data_dir(),
            FileDamage::OtherCluster => self.other.hosts[SUBJECT].data_dir(),
            FileDamage::Older => self.scratch.path().join("before"),
        };
        copy(&path_of(row, &source, self.engine), path);
    }

    /// The last committed entry in the log of the subject.
    fn committed(&mut self) -> u64 {
        let dir = self.host().data_dir().join("manager");
        let Ok(LocalMemberStatus::Member(seat)) = member_identity::read_status(&dir) else {
            panic!("{} has a member", dir.display())
        };
        warren_log::open(&dir, self.engine, seat.log_owner()).unwrap().load().unwrap().hard_state.commit
    }

    /// The identity of the manager, and its state once it has applied the entry `committed`.
    async fn started(&mut self, committed: u64) -> Result<(u64, String, u64, u64), String> {
        let host = self.host();
        host.start(false).await.map_err(|error| {
            let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
            causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
        })?;
        let manager = host.manager();
        let deadline = tokio::time::Instant::now() + crate::fixture::WAIT_DEADLINE;
        manager.store().wait_until(|published| published.index >= committed, deadline).await;
        let published = manager.store().read();
        let who = (manager.store().own_id(), manager.cluster().to_string());
        let found = (who.0, who.1, published.index, published.state.digest().value);
        drop(published);
        host.drop_manager().await;
        Ok(found)
    }

    /// The deviation from the expected result, if any.
    async fn judge(&mut self, row: &DamageCase, good: &(u64, String, u64, u64)) -> Result<(), String> {
        let committed = good.2;
        self.reset();
        let data_dir = self.host().data_dir();
        let path = path_of(row, &data_dir, self.engine);
        self.damage(row, &path);
        // No certificate is issued either before all files are known to be of one manager.
        let admin = data_dir.join("manager/admin.pem");
        if matches!(row.verdict, StartExpectation::Refused(_)) && path != admin {
            remove(&admin);
        }
        let before = self.files_to_compare(&data_dir);
        let name = path_of_name(row, self.engine);
        for _ in 0..2 {
            match (self.started(committed).await, &row.verdict) {
                (Ok(found), StartExpectation::Refused(_)) => {
                    return Err(format!("the manager started as {found:?}"));
                }
                (Ok(found), _) if found != *good => {
                    return Err(format!("the manager is {found:?}, expected {good:?}"));
                }
                (Ok(_), _) => {}
                (Err(error), StartExpectation::Refused(way_back)) => {
                    if !(error.contains(&name) && error.contains(way_back)) {
                        return Err(format!("the error must contain {name:?} and {way_back:?}: {error}"));
                    }
                    let after = self.files_to_compare(&data_dir);
                    let names = before.keys().chain(after.keys());
                    let changed: Vec<_> =
                        names.filter(|path| before.get(*path) != after.get(*path)).collect();
                    if !changed.is_empty() {
                        return Err(format!("refused, and yet it changed {changed:?}"));
                    }
                }
                (Err(error), _) => return Err(format!("it refused: {error}")),
            }
        }
        match row.verdict {
            StartExpectation::Regenerated if !path.exists() => return Err("it was not made again".into()),
            StartExpectation::Refused(_) if row.damage == FileDamage::Missing && path.exists() => {
                return Err("another one was made in its place".into());
            }
            StartExpectation::Refused(_) => {}
            _ => return Ok(()),
        }
        // Restoring the right file alone repairs it.
        let below = path.strip_prefix(&data_dir).unwrap();
        copy(&self.scratch.path().join("now").join(below), &path);
        match self.started(committed).await {
            Ok(found) if found == *good => Ok(()),
            other => Err(format!("with the file put back: {other:?}")),
        }
    }

    /// The files that a refused start must not change: all but the lock, which names the last process, and
    /// the log itself, in which the engine counts its opens. The contents of the log are checked at the next
    /// start.
    fn files_to_compare(&self, data_dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = files(data_dir);
        let log = self.engine.path_in(Path::new("manager"));
        files.retain(|path, _| path != Path::new("lock") && !path.starts_with(&log));
        files
    }
}

/// The name in the error of a refused start.
fn path_of_name(row: &DamageCase, engine: LogEngine) -> String {
    match row.file {
        "snapshot" => "manager/snapshots/snapshot-".into(),
        "log" | "receipt" => format!("manager/raft.{engine}"),
        file => file.to_owned(),
    }
}

async fn every_row_has_its_verdict(engine: LogEngine) {
    let mut copies = DirectoryCopies::of(engine).await;
    let committed = copies.committed();
    let good = copies.started(committed).await.unwrap();
    assert_eq!(good.0, MEMBER);
    let mut wrong = Vec::new();
    for row in ROWS {
        if let Err(why) = copies.judge(row, &good).await {
            wrong.push(format!("{} {:?}: {why}", row.file, row.damage));
        }
    }
    copies.reset();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    assert_eq!(copies.started(committed).await.unwrap(), good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_directory_with_redb() {
    every_row_has_its_verdict(LogEngine::Redb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_directory_with_sled() {
    every_row_has_its_verdict(LogEngine::Sled).await;
}

/// A scenario in which a member once deleted its keys: its file was missing, it took itself for the first
/// member, and that one had been removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_without_its_file_is_refused() {
    let mut group = ManagerGroup::of_three().await;
    group.add("m4").await;
    group.use_administrator_of(1).await;
    group.remove_by_force(SUBJECT, "m1").await;
    let failed =
        tokio::time::timeout(crate::fixture::WAIT_DEADLINE, group.hosts[0].manager_mut().wait_failed()).await;
    failed.expect("it learns that it was removed");
    group.hosts[0].drop_manager().await;
    group.hosts.remove(0);
    group.all_vote().await;
    let host = &mut group.hosts[0];
    host.stop().await;
    let manager = host.data_dir().join("manager");
    let member = fs::read(manager.join("member")).unwrap();
    remove(&manager.join("member"));
    let before = files(&manager);
    let refused = host.start(false).await;
    if refused.is_ok() {
        let failed =
            tokio::time::timeout(crate::fixture::WAIT_DEADLINE, host.manager_mut().wait_failed()).await;
        panic!("the manager started, and {failed:?}; its CA key exists: {}", manager.join("ca.pem").exists());
    }
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("manager/member is missing"), "{error}");
    assert_eq!(files(&manager), before);
    warren_security::files::write_private(&manager.join("member"), &member).unwrap();
    host.start(false).await.unwrap();
    assert_eq!(host.manager().store().own_id(), MEMBER);
    group.leader().await;
}

/// The only manager of a cluster: `init` runs again on its directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_over_damaged_directory_is_refused() {
    let mut world = ManagerFixture::new().await;
    let cluster = world.manager().cluster();
    world.stop().await;
    let manager = world.data_dir().join("manager");
    let good = world.data_dir().with_extension("good");
    copy(&manager, &good);
    let log: &[&str] = &["raft.redb", "raft.redb.receipt"];
    for missing in [&["member"][..], &["ca.pem"], &["manager.pem"], log] {
        missing.iter().for_each(|file| remove(&manager.join(file)));
        let before = files(&manager);
        refuses(&world, true, &format!("manager/{} is missing", missing[0])).await;
        refuses(&world, false, &format!("manager/{} is missing", missing[0])).await;
        assert_eq!(files(&manager), before, "{missing:?}");
        copy(&good, &manager);
    }
    // Nothing was encrypted with it, and no other process has it; but not while another file is wrong.
    remove(&manager.join("secret-objects.key"));
    fs::write(manager.join("admin.pem"), "not a certificate\n").unwrap();
    let before = files(&manager);
    refuses(&world, true, "manager/admin.pem").await;
    assert_eq!(files(&manager), before);
    copy(&good.join("admin.pem"), &manager.join("admin.pem"));
    world.start(true).await.unwrap();
    assert_eq!(world.manager().cluster(), cluster);
    assert!(manager.join("secret-objects.key").exists());
    world.stop().await;
    world.start(false).await.unwrap();
}
