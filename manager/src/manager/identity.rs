//! Checks which manager a directory belongs to. All its files must agree before anything is written.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use warren_bootstrap::ca::{
    CaError, IssuedCertificates, ManagerKeys, ensure_secret_object_key, verify_certificates,
    verify_secret_object_key,
};
use warren_bootstrap::force_new_cluster;
use warren_bootstrap::member_identity::{self, CertificateIdentity, LocalMemberStatus, MemberIdentity};
use warren_log::LogEngine;
use warren_security::UnlockKey;
use warren_security::seal::KeyFiles;

use super::ManagerStartError;

/// The keys, which `unlock_key` opens if they are locked, and the member identity of the manager in `dir`, which is
/// created if there is none and `create` allows it. Reissued certificates must be saved only after the log and the
/// snapshot have been opened: these may belong to another manager.
pub(super) fn load_identity(
    dir: &Path,
    unlock_key: Option<&UnlockKey>,
    create: bool,
    engine: LogEngine,
    now: SystemTime,
) -> Result<(ManagerKeys, IssuedCertificates, MemberIdentity), ManagerStartError> {
    let Some(member) = member_identity(dir, create)? else {
        member_identity::begin_init(dir)?;
        let keys = ManagerKeys::open(dir, true, now)?;
        let member = MemberIdentity::founder(keys.identity());
        member_identity::save_identity(dir, &member)?;
        return Ok((keys, IssuedCertificates::default(), member));
    };
    let files = KeyFiles::open(dir, unlock_key).map_err(CaError::from)?;
    let member = with_secret_object_key(&files, engine, member)?;
    let (keys, issued) = ManagerKeys::prepare(files, false, now)?;
    Ok((keys, issued, member))
}

/// The member identity of the directory; `None` if `manager init` may create the first manager of a cluster
/// there.
fn member_identity(dir: &Path, create: bool) -> Result<Option<MemberIdentity>, ManagerStartError> {
    match member_identity::read_status(dir)? {
        LocalMemberStatus::Member(member) => Ok(Some(member)),
        LocalMemberStatus::Unused | LocalMemberStatus::InitPending if create => Ok(None),
        LocalMemberStatus::Unused | LocalMemberStatus::InitPending => {
            Err(CaError::NoCluster(dir.to_owned()).into())
        }
        LocalMemberStatus::JoinPending(_) => {
            Err(ManagerStartError::JoinPending(member_identity::join_key_path(dir)))
        }
        LocalMemberStatus::Superseded(_, newer) => Err(ManagerStartError::Superseded(newer)),
        LocalMemberStatus::Removed(member) => {
            // The process may have been killed before the keys were removed.
            member_identity::remove_keys(dir, &member)?;
            Err(ManagerStartError::Removed)
        }
    }
}

/// The identity with the existing secret object key, or with a new one if nothing that is needed is sealed with the
/// lost key; else unchanged.
fn with_secret_object_key(
    files: &Arc<KeyFiles>,
    engine: LogEngine,
    member: MemberIdentity,
) -> Result<MemberIdentity, ManagerStartError> {
    let known = verify_secret_object_key(files, member.certificate_identity.secret_object_key);
    if !matches!(known, Err(CaError::SecretObjectKeyMissing(_) | CaError::SecretObjectKeyReplaced { .. })) {
        // Other problems of the key are reported with the other keys.
        return Ok(member);
    }
    verify_certificates(files, &member)?;
    if !force_new_cluster::needs_no_secret_object_key(files, engine, &member) {
        return Ok(member);
    }
    let identity = CertificateIdentity {
        secret_object_key: ensure_secret_object_key(files)?,
        ..member.certificate_identity
    };
    let member = MemberIdentity { certificate_identity: identity, ..member };
    member_identity::save_identity(files.dir(), &member)?;
    Ok(member)
}

#[cfg(test)]
mod tests {
    use warren_bootstrap::join;

    use super::*;

    #[test]
    fn pending_join_error_names_file_and_recovery() {
        let dir = tempfile::tempdir().unwrap();
        join::begin_join(dir.path()).unwrap();
        for create in [true, false] {
            let refused =
                load_identity(dir.path(), None, create, LogEngine::default(), SystemTime::now()).unwrap_err();
            let (error, path) = (refused.to_string(), member_identity::join_key_path(dir.path()));
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("`warren manager join`") && error.contains("start over"), "{error}");
        }
    }
}
