//! The files of a manager that joined (member 2 of three, with a node), what can happen to each, and the
//! expected result of a start. Its peers are unreachable: it decides alone.

use FileDamage::{Empty, Leftover, Missing, Older, OtherCluster, OtherMember};
use StartExpectation::{Refused, Regenerated, Starts};

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDamage {
    Missing,
    /// It exists and is empty.
    Empty,
    /// That of member 3 of the same cluster.
    OtherMember,
    /// That of member 2 of another cluster.
    OtherCluster,
    /// The version from before the manager's last start and some writes.
    Older,
    /// A file that belongs to another state of the machine exists.
    Leftover,
}

/// The expected result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartExpectation {
    /// It does not start, changes no file, and names the file and this way to repair it.
    Refused(&'static str),
    /// It is the same manager as before, with its state.
    Starts,
    /// The same, and the file is created again.
    Regenerated,
}

pub struct DamageCase {
    /// Below the data directory; or `log`, `receipt` or `snapshot`.
    pub file: &'static str,
    pub damage: FileDamage,
    pub verdict: StartExpectation,
}

const fn row(file: &'static str, damage: FileDamage, verdict: StartExpectation) -> DamageCase {
    DamageCase { file, damage, verdict }
}

/// The file is restored, or the manager joins again.
const REJOIN: &str = "join again";
const RESTORE: &str = "restore";

pub const ROWS: &[DamageCase] = &[
    row("manager/member", Missing, Refused(REJOIN)),
    row("manager/member", Empty, Refused(REJOIN)),
    row("manager/member", OtherMember, Refused(REJOIN)),
    row("manager/member", OtherCluster, Refused(REJOIN)),
    // It was not written since the manager joined.
    row("manager/member", Older, Starts),
    // All managers of a cluster have the same one, so it can be copied from any of them.
    row("manager/ca.pem", Missing, Refused("copy it from another manager")),
    row("manager/ca.pem", Empty, Refused(RESTORE)),
    row("manager/ca.pem", OtherMember, Starts),
    row("manager/ca.pem", OtherCluster, Refused(RESTORE)),
    row("manager/ca.pem", Older, Starts),
    row("manager/secret-objects.key", Missing, Refused("copy it from another manager")),
    row("manager/secret-objects.key", Empty, Refused(RESTORE)),
    row("manager/secret-objects.key", OtherMember, Starts),
    row("manager/secret-objects.key", OtherCluster, Refused("copy it from another manager")),
    row("manager/secret-objects.key", Older, Starts),
    row("manager/manager.pem", Missing, Refused(REJOIN)),
    row("manager/manager.pem", Empty, Refused(RESTORE)),
    row("manager/manager.pem", OtherMember, Refused(REJOIN)),
    row("manager/manager.pem", OtherCluster, Refused(REJOIN)),
    // The same identity with an earlier expiry; it is renewed when that is due.
    row("manager/manager.pem", Older, Starts),
    row("manager/admin.pem", Missing, Regenerated),
    row("manager/admin.pem", Empty, Refused("remove it")),
    // Of the same administrator.
    row("manager/admin.pem", OtherMember, Starts),
    row("manager/admin.pem", OtherCluster, Refused("remove it")),
    row("manager/admin.pem", Older, Starts),
    row("manager/node.pem", Missing, Regenerated),
    row("manager/node.pem", Empty, Refused("remove it")),
    row("manager/node.pem", OtherMember, Refused("remove it")),
    row("manager/node.pem", OtherCluster, Refused("remove it")),
    row("manager/node.pem", Older, Starts),
    row("manager/member.key", Missing, Refused(RESTORE)),
    row("manager/member.key", Empty, Refused(RESTORE)),
    row("manager/member.key", OtherMember, Refused("put the two that belong together back")),
    row("manager/member.key", OtherCluster, Refused("put the two that belong together back")),
    // Created once.
    row("manager/member.key", Older, Starts),
    row("manager/keyring", Missing, Refused(RESTORE)),
    row("manager/keyring", Empty, Refused(RESTORE)),
    row("manager/keyring", OtherMember, Refused("put the two that belong together back")),
    row("manager/keyring", OtherCluster, Refused("put the two that belong together back")),
    // Each start encrypts with a new key, which the older file does not hold.
    row("manager/keyring", Older, Refused("put the keyring that belongs to them back")),
    // It is advertised again at each start with other values than the last; here there are none.
    row("manager/advertised-address", Missing, Starts),
    row("manager/advertised-address", Empty, Starts),
    row("manager/advertised-address", OtherMember, Starts),
    row("manager/advertised-address", OtherCluster, Starts),
    row("manager/advertised-address", Older, Starts),
    row("log", Missing, Refused(REJOIN)),
    row("log", Empty, Refused("join it again")),
    row("log", OtherMember, Refused(REJOIN)),
    row("log", OtherCluster, Refused(REJOIN)),
    // The receipt shows later writes. If it is older as well, nothing here shows that the log is.
    row("log", Older, Refused("join it again")),
    row("receipt", Missing, Refused("join it again")),
    row("receipt", Empty, Refused("join it again")),
    // A receipt is a number: a higher one is rejected, and a lower one cannot be detected. It does no harm
    // alone, and is written again.
    row("receipt", Older, Starts),
    row("snapshot", Missing, Refused("restore")),
    row("snapshot", Empty, Refused("restore")),
    row("snapshot", OtherMember, Refused("restore")),
    row("snapshot", OtherCluster, Refused("restore")),
    // The snapshot of an earlier log, under the name of the present one.
    row("snapshot", Older, Refused("restore")),
    // Files of a machine that joins, or was removed: `member` shows that it is a member.
    row("manager/join.key", Leftover, Starts),
    row("manager/init.pending", Leftover, Starts),
    row("manager/roots.pem", Leftover, Starts),
    row("version", Missing, Regenerated),
    row("version", Empty, Refused("restore")),
    row("version", OtherMember, Starts),
    row("version", OtherCluster, Starts),
    row("version", Older, Starts),
    // It names the process that holds the lock, which the kernel knows.
    row("lock", Missing, Regenerated),
    row("lock", Empty, Starts),
    row("lock", OtherMember, Starts),
    row("lock", OtherCluster, Starts),
    row("lock", Older, Starts),
];
