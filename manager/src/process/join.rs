//! Becoming a further manager: the cluster is recognised by the token's digest before anything is said, then the
//! token and a certificate request go out, and all that makes a manager comes back.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use warren_core::LEVEL;
use warren_log::DataDir;
use warren_process::joining::{self, NOT_JOINED, Refused};
use warren_process::{Exit, Failure, chain, data_dir_flag};
use warren_proto::v1::managers_client::ManagersClient;
use warren_proto::{Problem, v1};
use warren_security::{CertificateAuthority, CertificateRequest, PrivateKey, Roots, Token};
use warren_types::{ManagerAddress, NodeName, NodeRole};
use zeroize::{Zeroize, Zeroizing};

use super::not_started;
use crate::recovery::joining::{Admission, Offer, begin, begin_anew, check_replaceable, clean, finish};
use crate::recovery::seat::{self, AUTHORITY_FILE, Introduced, Standing};
use crate::server::ServeError;

/// Largest answer: keys, and the managers there are.
const MAX_ANSWER: usize = 1 << 20;

/// What a machine that wants to be a manager says.
#[derive(Debug, Clone, Copy)]
pub struct JoinWish<'a> {
    /// Where its node keeps what.
    pub data_dir: &'a Path,
    /// A manager of the cluster.
    pub manager: &'a ManagerAddress,
    /// What lets it in, as text.
    pub token: &'a str,
    /// What people will call it.
    pub name: &'a NodeName,
    /// Where the others will reach it.
    pub address: &'a ManagerAddress,
    /// Where it will listen: that this is taken is said before the cluster hears of the machine. `None` asks nobody.
    pub listen: Option<SocketAddr>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// It is a manager from now on.
    Anew {
        /// What people call it.
        name: String,
        /// Of which cluster.
        cluster: String,
    },
    /// It was one of this cluster before.
    Before,
}

/// Makes a machine a manager of the cluster that the token is of, unless it is one already. It does not run yet. One
/// that its cluster removed, or went on without, joins anew, and forgets what it was once it is let in.
///
/// # Errors
/// Why it is none; trying again goes on with the same key, and so as the same manager.
pub async fn join(wish: JoinWish<'_>) -> Result<Joined, Failure> {
    let token = joining::parse_token(wish.token, NodeRole::Manager)?;
    let lock = DataDir::open(wish.data_dir).map_err(|error| not_started(&error.into(), wish.data_dir))?;
    let dir = lock.path().join("manager");
    clean(&dir).map_err(|error| failed(&error))?;
    let standing = seat::look(&dir).map_err(|error| failed(&error))?;
    if matches!(standing, Standing::Seated(_)) {
        let known = CertificateAuthority::load(&dir.join(AUTHORITY_FILE)).map_err(|error| failed(&error))?;
        if known.digest() != token.authority() {
            // Its cluster may not be in the log yet, so there is nothing to remove it from.
            return Err(match seat::is_init_pending(&dir) {
                true => of_begun_init(&dir, wish.data_dir),
                false => of_another_cluster(&known),
            });
        }
        finish(&dir).map_err(|error| failed(&error))?;
        return Ok(Joined::Before);
    }
    if matches!(standing, Standing::InitPending) {
        return Err(of_begun_init(&dir, wish.data_dir));
    }
    let forgets = matches!(standing, Standing::Removed(_) | Standing::Overtaken(..));
    if forgets {
        check_replaceable(&dir).map_err(|error| failed(&error))?;
    }
    if let Some(address) = wish.listen {
        let free = TcpListener::bind(address).map(drop);
        let taken = |source| not_started(&ServeError::Listen { address, source }.into(), wish.data_dir);
        free.map_err(taken)?;
    }
    let address = wish.manager.to_string();
    let (channel, roots) = joining::dial(&address, &token).await?;
    let key = begin(&dir).map_err(|error| failed(&error))?;
    let mut client = ManagersClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    let answered = joining::answer(&address, client.join(request(&wish, &token, &key)?)).await?;
    let answer = answered.map_err(|status| refused(&status))?.into_inner();
    let joined = Joined::Anew { name: answer.name.clone(), cluster: answer.cluster_id.clone() };
    let admission = admitted(&key, &roots, answer)?;
    if forgets {
        // Not before: one that is refused may be the only one that has what its cluster lost.
        begin_anew(&dir, &key).map_err(|error| failed(&error))?;
    }
    admission.complete(&dir).map_err(|error| failed(&error))?;
    Ok(joined)
}

fn request(wish: &JoinWish<'_>, token: &Token, key: &PrivateKey) -> Result<v1::JoinManagerRequest, Failure> {
    let certificate_request = CertificateRequest::create(key).map_err(|error| failed(&error))?;
    Ok(v1::JoinManagerRequest {
        token: token.reveal().to_string(),
        certificate_request,
        name: wish.name.to_string(),
        address: wish.address.to_string(),
        level: LEVEL,
    })
}

/// Checks the answer. What is secret in it is wiped from memory.
fn admitted(key: &PrivateKey, roots: &Roots, answer: v1::JoinManagerResponse) -> Result<Admission, Failure> {
    let v1::JoinManagerResponse {
        certificate, mut authority, content_key, member, founders, managers, ..
    } = answer;
    // One that this version cannot read is found through the others.
    let managers: Vec<_> = managers.iter().filter_map(introduced).collect();
    let content_key = Zeroizing::new(String::from_utf8_lossy(&content_key).into_owned());
    let offer = Offer {
        certificate: &certificate,
        authority: &authority,
        content_key: &content_key,
        member,
        founders: &founders,
        managers: &managers,
    };
    let admission = Admission::check(key, roots, offer);
    authority.zeroize();
    admission.map_err(|error| {
        let hint = "use the version of Warren that the other managers have";
        Failure::new(Exit::Failed, NOT_JOINED, chain(&error), hint)
    })
}

fn introduced(manager: &v1::Manager) -> Option<Introduced> {
    let (id, address) = (manager.id.parse().ok()?, manager.address.parse().ok()?);
    Some(Introduced { member: manager.member, id, address })
}

fn refused(status: &tonic::Status) -> Failure {
    let Problem { code, message, violations, reason } = Problem::from(status);
    Refused { code, reason, message, violations }.into_failure(NodeRole::Manager)
}

fn failed(error: &dyn std::error::Error) -> Failure {
    let hint = "check the data directory, or choose another --data-dir";
    Failure::new(Exit::Failed, NOT_JOINED, chain(error), hint)
}

fn of_another_cluster(known: &CertificateAuthority) -> Failure {
    let why = format!("it is a manager of another cluster already (CA {})", known.digest());
    let hint = "remove it there first with `warren manager rm`, or choose another --data-dir";
    Failure::new(Exit::Conflict, NOT_JOINED, why, hint)
}

fn of_begun_init(dir: &Path, data_dir: &Path) -> Failure {
    let dir = dir.display();
    let why = format!("`manager init` began to make a cluster in {dir} and has not completed it");
    let flag = data_dir_flag(data_dir);
    let hint = format!("complete that with `warren manager init{flag}`, or move {dir} away to join instead");
    Failure::new(Exit::Conflict, NOT_JOINED, why, hint)
}
