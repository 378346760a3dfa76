//! Audit lines: a layer around authorization that records who called what, with which result. Handlers say on which
//! object (`AuditedCall`).
//!
//! Recorded are all writes, the reads in `RECORDED_READS`, and all denied calls; the latter, and renewals without a
//! certificate, within the bounds of [`DenialLimiter`]. A call that another manager relays is recorded there: this
//! manager only tells it the object.

mod read;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;
use warren_audit::{
    AuditCaller, AuditFileLimits, AuditLine, AuditLog, AuditObject, AuditOutcome, DenialCaller, DenialLimiter,
};
use warren_proto::Problem;
use warren_security::{Peer, Role};
use warren_store::Store;

use super::Api;
use super::audited_call::AuditedCall;
use super::methods::{CallerRole, METHODS, RequiredRole};
use super::middleware::{CallFuture, Middleware};
use super::request_metrics::{code_name, method_name};

/// Reads that are recorded, and what workers request of the cluster.
const RECORDED_READS: [&str; 3] = ["Logs/Read", "SecretObjects/Read", "Membership/Leave"];
/// Methods for operators, administrators and callers without a certificate that only read.
const UNRECORDED: [&str; 7] = [
    "Services/Forecast",
    "Tokens/List",
    "Users/Get",
    "Users/List",
    "Users/ListKeys",
    "Sessions/CheckNode",
    "Peers/CheckManager",
];
/// The object of a relayed call, in its answer to the manager that received the call.
const OBJECT_METADATA: &str = "warren-audited-object";
/// Interval of looking for denied calls that have no line.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(30);

/// Whether a call that was not denied gets a line.
fn is_recorded(path: &str) -> bool {
    let need = METHODS.iter().find(|(method, _)| *method == path).map(|(_, need)| *need);
    let name = method_name(path);
    RECORDED_READS.contains(&name)
        || (matches!(
            need,
            Some(
                RequiredRole::Operator
                    | RequiredRole::Admin
                    | RequiredRole::Anonymous
                    | RequiredRole::Renewal(_)
            )
        ) && !UNRECORDED.contains(&name))
}

/// Whether the method, as in lines, renews a certificate.
fn is_renewal(method: &str) -> bool {
    METHODS.iter().any(|(path, need)| matches!(need, RequiredRole::Renewal(_)) && method_name(path) == method)
}

fn millis_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The audit log of this manager, with the bounds of denied calls. Cheap to clone.
#[derive(Clone)]
pub struct Auditor {
    log: AuditLog,
    denials: Arc<Mutex<DenialLimiter>>,
    manager: Arc<str>,
}

impl Auditor {
    /// Writes to files in `dir` for the manager with that name. Drops `data_dir_lock` after the last line.
    ///
    /// # Errors
    /// The thread that writes cannot be started.
    pub fn start(dir: PathBuf, manager: String, data_dir_lock: impl Send + 'static) -> std::io::Result<Self> {
        let log = AuditLog::start(dir, AuditFileLimits::default(), data_dir_lock)?;
        let denials = Arc::new(Mutex::new(DenialLimiter::new(Instant::now())));
        Ok(Self { log, denials, manager: manager.into() })
    }

    /// Why lines cannot be written at this time.
    pub fn failure(&self) -> Option<String> {
        self.log.failure()
    }

    /// Writes what is still to be written, and nothing later.
    pub async fn close(&self) {
        self.record_suppressed(true).await;
        self.log.close().await;
    }

    /// Begins to close without waiting. Calls in progress are not recorded any more.
    pub fn begin_close(&self) {
        self.log.begin_close();
    }

    async fn record_suppressed(&self, end: bool) {
        let suppressed = self.limiter().take_suppressed(Instant::now(), end);
        for summary in suppressed {
            let (time, manager) = (millis_now(), self.manager.to_string());
            self.log.record(AuditLine { time, manager, ..summary }).await;
        }
    }

    fn limiter(&self) -> std::sync::MutexGuard<'_, DenialLimiter> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn record(&self, line: AuditLine, key: DenialCaller) {
        let is_admitted = match bounded_by(&line, key) {
            Some(key) => self.limiter().admit(key, &line),
            None => true,
        };
        if is_admitted {
            self.log.record(line).await;
        }
    }
}

impl Api {
    /// Records now and then how many denied calls had no line.
    pub fn start_audit_summaries(&self) {
        let auditor = self.audit.clone();
        self.shutdown.spawn_cancellable("audit-summaries", async move {
            loop {
                sleep(SUMMARY_INTERVAL).await;
                auditor.record_suppressed(false).await;
            }
        });
    }
}

/// Records calls. It must be outside of the layer that checks permissions.
#[derive(Clone)]
pub struct AuditLayer {
    /// Where lines go.
    pub auditor: Auditor,
    /// Has the names of nodes and managers.
    pub store: Store,
}

impl Middleware for AuditLayer {
    fn call<S>(&self, inner: &mut S, mut request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            return Box::pin(inner.call(request));
        };
        let path = request.uri().path();
        let (method, is_recorded) = (method_name(path), is_recorded(path));
        let call = AuditedCall::default();
        request.extensions_mut().insert(call.clone());
        let answer = inner.call(request);
        let pending =
            PendingLine { layer: self.clone(), peer, method, call, is_recorded, is_finished: false };
        Box::pin(async move {
            let mut pending = pending;
            let mut response = answer.await?;
            pending.is_finished = true;
            let told = response.headers_mut().remove(OBJECT_METADATA);
            if pending.call.is_relayed() {
                if let Some(value) = pending.call.object().as_ref().and_then(encode_object) {
                    response.headers_mut().insert(OBJECT_METADATA, value);
                }
                return Ok(response);
            }
            if let Some(object) = told.and_then(|value| serde_json::from_slice(value.as_bytes()).ok()) {
                *pending.call.object() = Some(object);
            }
            let status = Status::from_header_map(response.headers()).filter(|it| it.code() != Code::Ok);
            pending.record(status.as_ref()).await;
            Ok(response)
        })
    }
}

fn encode_object(object: &AuditObject) -> Option<HeaderValue> {
    HeaderValue::from_bytes(&serde_json::to_vec(object).ok()?).ok()
}

/// A running call. If it is dropped before its answer, the line says that its outcome is unknown.
struct PendingLine {
    layer: AuditLayer,
    peer: Peer,
    method: &'static str,
    call: AuditedCall,
    is_recorded: bool,
    is_finished: bool,
}

impl PendingLine {
    fn line(&self) -> AuditLine {
        AuditLine {
            time: millis_now(),
            manager: self.layer.auditor.manager.to_string(),
            caller: show_caller(&self.peer, self.call.role(), &self.layer.store),
            method: self.method.to_owned(),
            object: self.call.object().clone(),
            ..AuditLine::default()
        }
    }

    async fn record(&self, status: Option<&Status>) {
        let outcome = match status.map(Status::code) {
            None => AuditOutcome::Allowed,
            Some(Code::PermissionDenied | Code::Unauthenticated) => AuditOutcome::Denied,
            Some(_) => AuditOutcome::Failed,
        };
        if !self.is_recorded && outcome != AuditOutcome::Denied {
            return;
        }
        let code = code_name(status.map_or(Code::Ok, Status::code)).to_owned();
        let reason = status.map(|status| Problem::from(status).reason).unwrap_or_default();
        let line = AuditLine { outcome, code, reason, ..self.line() };
        self.layer.auditor.record(line, denial_key(&self.peer)).await;
    }
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        let is_relayed = self.call.is_relayed();
        if self.is_finished || !self.is_recorded || is_relayed {
            return;
        }
        let line = AuditLine { code: code_name(Code::Cancelled).to_owned(), ..self.line() };
        let (auditor, key) = (self.layer.auditor.clone(), denial_key(&self.peer));
        // Without a runtime the process ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { auditor.record(line, key).await });
        }
    }
}

/// What bounds this line of the `caller`, if anything does.
fn bounded_by(line: &AuditLine, caller: DenialCaller) -> Option<DenialCaller> {
    let is_anonymous = matches!(caller, DenialCaller::Anonymous(_));
    match line.outcome {
        AuditOutcome::Denied => Some(caller),
        // Whoever has a copy of the request can send it.
        AuditOutcome::Allowed if is_anonymous && is_renewal(&line.method) => {
            let AuditObject { kind, id, name, .. } = line.object.clone().unwrap_or_default();
            Some(DenialCaller::Renewal(format!("{kind} {id} {name}")))
        }
        AuditOutcome::Allowed => None,
        // Whoever reaches the port can try to join.
        AuditOutcome::Failed | AuditOutcome::Unknown => is_anonymous.then_some(caller),
    }
}

fn denial_key(peer: &Peer) -> DenialCaller {
    match peer {
        Peer::Anonymous { address } => DenialCaller::Anonymous(address.ip()),
        Peer::Certificate { identity, address, .. } => {
            DenialCaller::Identified(format!("{identity} at {}", address.ip()))
        }
        Peer::Local { uid, .. } => DenialCaller::Identified(format!("uid {uid}")),
        Peer::Relayed { by, .. } => DenialCaller::Identified(by.to_string()),
    }
}

fn show_caller(peer: &Peer, role: Option<CallerRole>, store: &Store) -> AuditCaller {
    let none = AuditCaller::default();
    let at = SocketAddr::to_string;
    match peer.origin() {
        Peer::Anonymous { address } => AuditCaller { kind: "anonymous".into(), address: at(address), ..none },
        Peer::Local { uid, .. } => AuditCaller { kind: "local".into(), uid: Some(*uid), ..none },
        Peer::Certificate { identity, address, .. } => {
            let id = identity.id().to_owned();
            let state = &store.read().state;
            let node = id.parse().ok().and_then(|id| Some(state.node(&id)?.name.to_string()));
            let member = id.parse().ok().and_then(|id| Some(state.member_of_manager(&id)?.name.to_string()));
            let name = match identity.role() {
                Role::Worker => node,
                Role::Manager => member,
                Role::User => None,
            };
            let role = role.map_or_else(|| identity.role().to_string(), |role| role.to_string());
            let kind = "certificate".to_owned();
            AuditCaller {
                kind,
                name: name.unwrap_or_else(|| id.clone()),
                id,
                role,
                address: at(address),
                uid: None,
            }
        }
        Peer::Relayed { .. } => none,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_anybody_can_cause_are_bounded() {
        use AuditOutcome::{Allowed, Denied, Failed};

        let anonymous = DenialCaller::Anonymous(std::net::IpAddr::from([10u8, 0, 0, 7]));
        let identified = DenialCaller::Identified("worker w1".to_owned());
        let object =
            AuditObject { kind: "node".into(), id: "1".into(), name: "n1".into(), ..Default::default() };
        let of_node = DenialCaller::Renewal("node 1 n1".to_owned());
        for (caller, method, outcome, expected) in [
            (&anonymous, "Membership/Renew", Allowed, Some(&of_node)),
            (&anonymous, "Users/Renew", Allowed, Some(&of_node)),
            (&anonymous, "Membership/Join", Allowed, None),
            (&anonymous, "Membership/Renew", Denied, Some(&anonymous)),
            (&anonymous, "Membership/Join", Failed, Some(&anonymous)),
            (&identified, "Membership/Renew", Allowed, None),
            (&identified, "Services/Create", Failed, None),
            (&identified, "Services/Create", Denied, Some(&identified)),
        ] {
            let (method, object) = (method.to_owned(), Some(object.clone()));
            let line = AuditLine { method, object, outcome, ..AuditLine::default() };
            assert_eq!(bounded_by(&line, caller.clone()).as_ref(), expected, "{line:?}");
        }
    }
}
