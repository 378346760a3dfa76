//! Docker's API of this manager: its certificate, and its calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use warren_bootstrap::ca::ManagerKeys;
use warren_control::{BoxError, Clock, Shutdown, SystemClock};
use warren_docker_api::server::DockerListeners;
use warren_security::{AuthorityError, IncomingConnections, WebCertificate, web_server_config};

use crate::config::ManagerConfig;
use crate::server::{GrpcServices, ListenError, spawn};

/// The certificate for clients is issued anew at this interval; its key is only in memory.
const REISSUE_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Serves Docker's API. Its requests become calls of `services` by the peer of the request, so that roles and audit are
/// those of every other call.
pub(crate) fn serve(
    listeners: DockerListeners,
    config: &ManagerConfig,
    keys: &Arc<ManagerKeys>,
    clock: &Arc<SystemClock>,
    services: &GrpcServices,
    shutdown: &Shutdown,
) -> Result<(), ListenError> {
    let (socket, address) = (&config.docker.socket, listeners.address());
    if socket.is_none() && address.is_none() {
        return Ok(());
    }
    tracing::info!(?socket, ?address, "serving Docker's API");
    let tls = match address {
        None => None,
        Some(address) => {
            let (issuer, clock, names) = (keys.clone(), clock.clone(), names(config, address));
            let issue = move || {
                let now = UNIX_EPOCH + Duration::from_millis(clock.wall_millis());
                issuer.authority.load().issue_web_server(&names, now)
            };
            let certificate = WebCertificate::new(issue()?).map_err(AuthorityError::from)?;
            let tls = web_server_config(keys.trust.clone(), certificate.clone())?;
            let reissue =
                services.api.background_tasks.spawn("docker-certificate", REISSUE_INTERVAL, move || {
                    let replaced = issue().and_then(|issued| Ok(certificate.replace(issued)?));
                    std::future::ready(replaced.map_err(BoxError::from))
                });
            let mut authorities = keys.trust.changes();
            shutdown.spawn_cancellable("docker-authority", async move {
                while authorities.changed().await.is_ok() {
                    reissue.wake();
                }
            });
            Some(tls)
        }
    };
    let (connections, incoming) = IncomingConnections::channel();
    spawn("docker-calls", incoming, services, shutdown);
    shutdown.spawn_cancellable("docker-api", listeners.serve(tls, connections));
    Ok(())
}

/// The names by which clients may reach this manager.
fn names(config: &ManagerConfig, address: SocketAddr) -> Vec<String> {
    let own = [&config.advertise.host, config.name.as_str(), "localhost", "127.0.0.1", "::1"];
    let bound = Some(address.ip()).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
    own.into_iter().map(str::to_owned).chain(bound).collect()
}
