//! Joins a cluster as a manager: the cluster is identified by the CA digest in the token before anything is
//! sent, then the token and a certificate request are sent, and the response has the manager's keys.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use warren_bootstrap::join::{
    Admission, JoinOffer, begin_join, begin_rejoin, check_replaceable, finish, remove_leftovers,
};
use warren_bootstrap::member_identity::{self, AUTHORITY_FILE, BootstrapPeer, LocalMemberStatus};
use warren_core::FEATURE_LEVEL;
use warren_daemon::join::{self, JoinRefusal, NOT_JOINED};
use warren_daemon::{CommandError, ExitKind, data_dir_flag, error_chain};
use warren_log::DataDir;
use warren_proto::v1::managers_client::ManagersClient;
use warren_proto::{Problem, v1};
use warren_security::{CertificateAuthority, CertificateRequest, JoinToken, PrivateKey, Roots};
use warren_types::{ManagerAddress, NodeName, NodeRole};
use zeroize::{Zeroize, Zeroizing};

use super::start_failure;
use crate::server::ListenError;

/// Maximum response: keys and the list of managers.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Parameters of a join.
#[derive(Debug, Clone, Copy)]
pub struct JoinParams<'a> {
    /// The data directory of the node.
    pub data_dir: &'a Path,
    /// Address of a manager of the cluster.
    pub manager: &'a ManagerAddress,
    /// The join token as text.
    pub token: &'a str,
    /// Name of the new manager.
    pub name: &'a NodeName,
    /// Address that the others will use.
    pub address: &'a ManagerAddress,
    /// The listen address: checked for being free before the cluster is contacted. `None` skips the check.
    pub listen: Option<SocketAddr>,
}

/// The result of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerJoinOutcome {
    /// It became a manager.
    New {
        /// Name of the manager.
        name: String,
        /// Id of the cluster.
        cluster: String,
    },
    /// It was a manager of this cluster already.
    Existing,
}

/// Makes a machine a manager of the token's cluster, unless it is one already. It is not started. A removed
/// or superseded manager joins again, and its old data is deleted once the join is accepted.
///
/// # Errors
/// Why it failed; a repeated call uses the same key and becomes the same manager.
pub async fn join(options: JoinParams<'_>) -> Result<ManagerJoinOutcome, CommandError> {
    let token = join::parse_token(options.token, NodeRole::Manager)?;
    let lock =
        DataDir::open(options.data_dir).map_err(|error| start_failure(&error.into(), options.data_dir))?;
    let dir = lock.path().join("manager");
    remove_leftovers(&dir).map_err(|error| join_failure(&error))?;
    let standing = member_identity::read_status(&dir).map_err(|error| join_failure(&error))?;
    if matches!(standing, LocalMemberStatus::Member(_)) {
        let known = CertificateAuthority::load_roots(&dir.join(AUTHORITY_FILE));
        let known = known.map_err(|error| join_failure(&error))?;
        if !known.digests().contains(&token.authority()) {
            // Its cluster may not be in the log yet, so the manager cannot be removed from it.
            return Err(match member_identity::is_init_pending(&dir) {
                true => init_pending_failure(&dir, options.data_dir),
                false => other_cluster_failure(&known),
            });
        }
        finish(&dir).map_err(|error| join_failure(&error))?;
        return Ok(ManagerJoinOutcome::Existing);
    }
    if matches!(standing, LocalMemberStatus::InitPending) {
        return Err(init_pending_failure(&dir, options.data_dir));
    }
    let replaces_old = matches!(standing, LocalMemberStatus::Removed(_) | LocalMemberStatus::Superseded(..));
    if replaces_old {
        check_replaceable(&dir).map_err(|error| join_failure(&error))?;
    }
    if let Some(address) = options.listen {
        let free = TcpListener::bind(address).map(drop);
        let taken = |source| start_failure(&ListenError::Listen { address, source }.into(), options.data_dir);
        free.map_err(taken)?;
    }
    let address = options.manager.to_string();
    let (channel, roots) = join::connect(&address, &token).await?;
    let key = begin_join(&dir).map_err(|error| join_failure(&error))?;
    let mut client = ManagersClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
    let answered = join::await_answer(&address, client.join(request(&options, &token, &key)?)).await?;
    let answer = answered.map_err(|status| refusal_failure(&status))?.into_inner();
    let joined = ManagerJoinOutcome::New { name: answer.name.clone(), cluster: answer.cluster_id.clone() };
    let admission = check_response(&key, &roots, answer)?;
    if replaces_old {
        // Only now: a machine whose join is rejected may have the only copy of the old cluster's data.
        begin_rejoin(&dir, &key).map_err(|error| join_failure(&error))?;
    }
    admission.complete(&dir).map_err(|error| join_failure(&error))?;
    Ok(joined)
}

fn request(
    options: &JoinParams<'_>,
    token: &JoinToken,
    key: &PrivateKey,
) -> Result<v1::JoinManagerRequest, CommandError> {
    let certificate_request = CertificateRequest::create(key).map_err(|error| join_failure(&error))?;
    Ok(v1::JoinManagerRequest {
        token: token.reveal().to_string(),
        certificate_request,
        name: options.name.to_string(),
        address: options.address.to_string(),
        feature_level: FEATURE_LEVEL,
    })
}

/// Checks the response. Its secrets are wiped from memory.
fn check_response(
    key: &PrivateKey,
    roots: &Roots,
    answer: v1::JoinManagerResponse,
) -> Result<Admission, CommandError> {
    let v1::JoinManagerResponse {
        certificate,
        mut authority,
        secret_object_key: content_key,
        member_id: member,
        initial_voters: founders,
        managers,
        ..
    } = answer;
    // Addresses that this version cannot parse are learned from the other managers later.
    let managers: Vec<_> = managers.iter().filter_map(parse_bootstrap_peer).collect();
    let content_key = Zeroizing::new(String::from_utf8_lossy(&content_key).into_owned());
    let offer = JoinOffer {
        certificate: &certificate,
        authority: &authority,
        secret_object_key: &content_key,
        member_id: member,
        founders: &founders,
        bootstrap_peers: &managers,
    };
    let admission = Admission::check(key, roots, offer);
    authority.zeroize();
    admission.map_err(|error| {
        let hint = "use the version of Warren that the other managers have";
        CommandError::new(ExitKind::Failed, NOT_JOINED, error_chain(&error), hint)
    })
}

fn parse_bootstrap_peer(manager: &v1::Manager) -> Option<BootstrapPeer> {
    let (id, address) = (manager.id.parse().ok()?, manager.address.parse().ok()?);
    Some(BootstrapPeer { member_id: manager.member_id, id, address })
}

fn refusal_failure(status: &tonic::Status) -> CommandError {
    let Problem { code, message, violations, reason } = Problem::from(status);
    JoinRefusal { code, reason, message, violations }.into_error(NodeRole::Manager)
}

fn join_failure(error: &dyn std::error::Error) -> CommandError {
    let hint = "check the data directory, or choose another --data-dir";
    CommandError::new(ExitKind::Failed, NOT_JOINED, error_chain(error), hint)
}

fn other_cluster_failure(known: &Roots) -> CommandError {
    let ca = known.digests().first().map(ToString::to_string).unwrap_or_default();
    let why = format!("this machine is a manager of another cluster already (CA {ca})");
    let hint = "remove it there first with `warren manager rm`, or choose another --data-dir";
    CommandError::new(ExitKind::Conflict, NOT_JOINED, why, hint)
}

fn init_pending_failure(dir: &Path, data_dir: &Path) -> CommandError {
    let dir = dir.display();
    let why = format!("`manager init` in {dir} is incomplete");
    let flag = data_dir_flag(data_dir);
    let hint = format!("complete it with `warren manager init{flag}`, or move {dir} away to join instead");
    CommandError::new(ExitKind::Conflict, NOT_JOINED, why, hint)
}
