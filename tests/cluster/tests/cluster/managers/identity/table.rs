//! The files of a manager that joined (member 2 of three, with a node), what may become of each, and what the manager
//! does then. Its peers are away: what it concludes, it concludes by itself.

use Damage::{Empty, Missing, Older, OtherCluster, OtherMember, Stray};
use Verdict::{Refused, Regenerated, Starts};

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    Missing,
    /// It is there, with nothing in it.
    Empty,
    /// That of member 3 of the same cluster.
    OtherMember,
    /// That of member 2 of another cluster.
    OtherCluster,
    /// As it was before the manager's last start and some writes.
    Older,
    /// Such a file is there, of another state of the machine.
    Stray,
}

/// What the manager does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does not start, changes no file, and names the file and this way back.
    Refused(&'static str),
    /// It is the manager that it was, with the state that it had.
    Starts,
    /// The same, and the file is there again.
    Regenerated,
}

pub struct Row {
    /// Below the data directory; or `log`, `receipt` or `snapshot`.
    pub file: &'static str,
    pub damage: Damage,
    pub verdict: Verdict,
}

const fn row(file: &'static str, damage: Damage, verdict: Verdict) -> Row {
    Row { file, damage, verdict }
}

/// The file is put back, or the manager joins again.
const REJOIN: &str = "join again";
const RESTORE: &str = "restore";

pub const ROWS: &[Row] = &[
    row("manager/member", Missing, Refused(REJOIN)),
    row("manager/member", Empty, Refused(REJOIN)),
    row("manager/member", OtherMember, Refused(REJOIN)),
    row("manager/member", OtherCluster, Refused(REJOIN)),
    // It was not written since the manager joined.
    row("manager/member", Older, Starts),
    // All managers of a cluster have the same, so each is a way back for the others.
    row("manager/ca.pem", Missing, Refused("copy it from another manager")),
    row("manager/ca.pem", Empty, Refused(RESTORE)),
    row("manager/ca.pem", OtherMember, Starts),
    row("manager/ca.pem", OtherCluster, Refused(RESTORE)),
    row("manager/ca.pem", Older, Starts),
    row("manager/content.key", Missing, Refused("copy it from another manager")),
    row("manager/content.key", Empty, Refused(RESTORE)),
    row("manager/content.key", OtherMember, Starts),
    row("manager/content.key", OtherCluster, Refused("copy it from another manager")),
    row("manager/content.key", Older, Starts),
    row("manager/manager.pem", Missing, Refused(REJOIN)),
    row("manager/manager.pem", Empty, Refused(RESTORE)),
    row("manager/manager.pem", OtherMember, Refused(REJOIN)),
    row("manager/manager.pem", OtherCluster, Refused(REJOIN)),
    // The same identity, for a shorter time; it is renewed when that is due.
    row("manager/manager.pem", Older, Starts),
    row("manager/admin.pem", Missing, Regenerated),
    row("manager/admin.pem", Empty, Refused("remove it")),
    // Of the same person.
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
    // Made once.
    row("manager/member.key", Older, Starts),
    row("manager/keyring", Missing, Refused(RESTORE)),
    row("manager/keyring", Empty, Refused(RESTORE)),
    row("manager/keyring", OtherMember, Refused("put the two that belong together back")),
    row("manager/keyring", OtherCluster, Refused("put the two that belong together back")),
    // Each start seals under a key of its own, which the older file does not hold.
    row("manager/keyring", Older, Refused("put the keyring that belongs to them back")),
    // It is said again at each start that has other words than the last; here there are none.
    row("manager/advertised", Missing, Starts),
    row("manager/advertised", Empty, Starts),
    row("manager/advertised", OtherMember, Starts),
    row("manager/advertised", OtherCluster, Starts),
    row("manager/advertised", Older, Starts),
    row("log", Missing, Refused(REJOIN)),
    row("log", Empty, Refused("join it again")),
    row("log", OtherMember, Refused(REJOIN)),
    row("log", OtherCluster, Refused(REJOIN)),
    // The receipt knows of later writes. Where it is older as well, nothing here tells that the log is.
    row("log", Older, Refused("join it again")),
    row("receipt", Missing, Refused("join it again")),
    row("receipt", Empty, Refused("join it again")),
    // A receipt is a number: a higher one is refused, and of a lower one nothing tells that it is wrong. It does no
    // harm alone, and is written anew.
    row("receipt", Older, Starts),
    row("snapshot", Missing, Refused("restore")),
    row("snapshot", Empty, Refused("restore")),
    row("snapshot", OtherMember, Refused("restore")),
    row("snapshot", OtherCluster, Refused("restore")),
    // It is what the log pointed to then, under the name of what it points to now.
    row("snapshot", Older, Refused("restore")),
    // Those of a machine that becomes a manager, or was one: `member` says that it is one.
    row("manager/join.key", Stray, Starts),
    row("manager/init.pending", Stray, Starts),
    row("manager/roots.pem", Stray, Starts),
    row("version", Missing, Regenerated),
    row("version", Empty, Refused("restore")),
    row("version", OtherMember, Starts),
    row("version", OtherCluster, Starts),
    row("version", Older, Starts),
    // It names the process that has the directory, which the kernel knows.
    row("lock", Missing, Regenerated),
    row("lock", Empty, Starts),
    row("lock", OtherMember, Starts),
    row("lock", OtherCluster, Starts),
    row("lock", Older, Starts),
];
