//! Access to registries for nodes that pull: a token for the one repository where the registry has tokens, and the
//! password of the credential only where it has none. Tokens are kept in memory until shortly before they expire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use tokio::time::{Instant, timeout};
use tonic::Code;
use warren_proto::Problem;
use warren_proto::status::NO_REGISTRY_ACCESS;
use warren_proto::v1;
use warren_proto::v1::registry_access::Access;
use warren_registry::{PullGrant, Reference, RegistryCredentials, RegistryError, ResolveNames};
use warren_types::{NodeId, SecretObjectId};
use zeroize::{Zeroize, Zeroizing};

/// How long a node waits for its registry; the timeout of its own call is longer.
const GRANT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer without a token is used again: a registry that does not answer must not delay every pull, and one
/// that denies the password must not be asked by every node.
const ANSWER_TTL: Duration = Duration::from_secs(30);
/// A token that is younger is not replaced, although a node says that the registry refused it.
const MIN_TOKEN_AGE: Duration = Duration::from_secs(10);
/// The last part of its lifetime in which a token is not given to another node; at most half of the lifetime.
const MAX_MARGIN: Duration = Duration::from_secs(60);
/// The most answers that are kept.
const MAX_ANSWERS: usize = 1024;

/// A credential with the image that is pulled by it.
pub struct PullCredential {
    /// Its id, and the number of its version.
    pub version: (SecretObjectId, u64),
    /// User and password.
    pub credentials: RegistryCredentials,
    /// Whether nodes never get the password.
    pub is_token_only: bool,
    /// The image.
    pub reference: Reference,
}

/// A version of a credential, and a repository of its registry.
type Question = ((SecretObjectId, u64), String);
type Answer = Result<PullGrant, RegistryError>;
/// Locked while the registry is asked, so that it is asked once.
type AnswerSlot = Arc<tokio::sync::Mutex<Option<StoredAnswer>>>;

struct StoredAnswer {
    answer: Answer,
    asked: Instant,
    until: Instant,
}

impl StoredAnswer {
    fn new(answer: Answer, now: Instant) -> Self {
        let ttl = match &answer {
            Ok(PullGrant::Token(token)) => {
                let lifetime = token.remaining();
                lifetime - (lifetime / 2).min(MAX_MARGIN)
            }
            _ => ANSWER_TTL,
        };
        Self { answer, asked: now, until: now + ttl }
    }

    fn is_usable(&self, now: Instant, is_renewal: bool) -> bool {
        now < self.until && (!is_renewal || now < self.asked + MIN_TOKEN_AGE)
    }
}

/// Requests access for nodes. Clones share the answers.
#[derive(Clone)]
pub struct RepositoryTokens {
    registries: Arc<dyn ResolveNames>,
    answers: Arc<Mutex<BTreeMap<Question, AnswerSlot>>>,
}

impl RepositoryTokens {
    /// Asks these registries.
    pub fn new(registries: Arc<dyn ResolveNames>) -> Self {
        Self { registries, answers: Arc::default() }
    }

    /// What `node` gets for pulls from the repository, as an encoded [`v1::RegistryAccess`]; `None` if the registry
    /// demands nothing. With `is_renewal` the registry has refused what the node got before.
    ///
    /// # Errors
    /// [`NO_REGISTRY_ACCESS`].
    pub async fn access(
        &self,
        node: NodeId,
        credential: &PullCredential,
        is_renewal: bool,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Problem> {
        let answer = self.answer(credential, is_renewal).await;
        let failure = answer.as_ref().err().map(ToString::to_string);
        let access = access_by(answer, credential)?;
        if let Some(Access::Login(_)) = &access {
            let registry = credential.reference.domain();
            let reason = failure.unwrap_or_else(|| "it has no tokens".to_owned());
            tracing::info!(%node, registry, reason, "a node gets the password of a registry");
        }
        Ok(access.map(encode))
    }

    async fn answer(&self, credential: &PullCredential, is_renewal: bool) -> Answer {
        let PullCredential { version, credentials, reference, .. } = credential;
        let slot = self.slot((*version, reference.path().to_owned()));
        let mut stored = slot.lock().await;
        let now = Instant::now();
        if let Some(known) = stored.as_ref().filter(|known| known.is_usable(now, is_renewal)) {
            return known.answer.clone();
        }
        let asked = timeout(GRANT_TIMEOUT, self.registries.pull_grant(reference, credentials.clone())).await;
        let answer = asked.unwrap_or_else(|_| {
            let (registry, what) = (reference.domain().to_owned(), "the token request".to_owned());
            Err(RegistryError::Stalled { registry, what, silence: GRANT_TIMEOUT })
        });
        *stored = Some(StoredAnswer::new(answer.clone(), Instant::now()));
        answer
    }

    /// The slot of the question. A new one takes the place of those that have no usable answer, or of all if they are
    /// too many.
    fn slot(&self, question: Question) -> AnswerSlot {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = answers.get(&question) {
            return Arc::clone(slot);
        }
        let now = Instant::now();
        let is_usable = |slot: &AnswerSlot| {
            let stored = slot.try_lock();
            stored.is_ok_and(|stored| stored.as_ref().is_some_and(|stored| stored.is_usable(now, false)))
        };
        let is_waited_for = |slot: &AnswerSlot| Arc::strong_count(slot) > 1;
        answers.retain(|_, slot| is_waited_for(slot) || is_usable(slot));
        if answers.len() >= MAX_ANSWERS {
            answers.retain(|_, slot| is_waited_for(slot));
        }
        Arc::clone(answers.entry(question).or_default())
    }
}

/// What a node gets, by the answer of the registry; `None` if it needs nothing.
fn access_by(answer: Answer, credential: &PullCredential) -> Result<Option<Access>, Problem> {
    let PullCredential { credentials, is_token_only, reference, .. } = credential;
    let (user, registry) = (credentials.user.clone(), reference.domain());
    let refusal = |code: Code, message: String| Err(Problem::new(code, NO_REGISTRY_ACCESS, message));
    let failure = match answer {
        Ok(PullGrant::NotNeeded) => return Ok(None),
        Ok(PullGrant::Token(token)) => {
            return Ok(Some(Access::Token(v1::RepositoryToken {
                registry: registry.to_owned(),
                repository: reference.path().to_owned(),
                user,
                token: token.text().to_owned(),
                valid_for_ms: u64::try_from(token.remaining().as_millis()).unwrap_or(u64::MAX),
            })));
        }
        Err(denied @ RegistryError::Denied { .. }) => {
            return refusal(Code::FailedPrecondition, denied.to_string());
        }
        Ok(PullGrant::PasswordOnly) => None,
        Err(error) => Some(error),
    };
    let login = format!("`warren registry login {registry}` without --token-only");
    match failure {
        _ if !is_token_only => {
            Ok(Some(Access::Login(v1::RegistryLogin { user, password: credentials.password.clone() })))
        }
        None => refusal(
            Code::FailedPrecondition,
            format!(
                "registry {registry} has no tokens for single repositories, and its credential is for tokens only; \
                 {login} lets nodes have the password"
            ),
        ),
        Some(error) => refusal(
            if error.is_transient() { Code::Unavailable } else { Code::FailedPrecondition },
            format!(
                "managers get no token for registry {registry}, and its credential is for tokens only: {error}; \
                 let managers reach the registry, or {login} lets nodes have the password"
            ),
        ),
    }
}

fn encode(access: Access) -> Zeroizing<Vec<u8>> {
    let mut message = v1::RegistryAccess { access: Some(access) };
    let bytes = Zeroizing::new(message.encode_to_vec());
    match &mut message.access {
        Some(Access::Login(login)) => login.password.zeroize(),
        Some(Access::Token(token)) => token.token.zeroize(),
        None => {}
    }
    bytes
}

#[cfg(test)]
mod tests;
