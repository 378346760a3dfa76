//! Networks: create, get, list, remove.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Command, State};
use warren_proto::convert::parse_field;
use warren_proto::v1::{self, networks_server};
use warren_store::problem::status_of;
use warren_types::spec::validate_labels;
use warren_types::{Network, NetworkId, NetworkName, Violations};

use super::Api;
use super::audited_call::AuditedCall;
use super::paging::Page;

pub(super) fn parse(request: &v1::CreateNetworkRequest) -> Result<(NetworkId, NetworkName), Violations> {
    let mut wrong = Violations::default();
    let id = parse_field("id", &request.id).map_err(|inner| wrong.0.extend(inner.0)).ok();
    let name = parse_field("name", &request.name).map_err(|inner| wrong.0.extend(inner.0)).ok();
    validate_labels(&request.labels, &mut wrong);
    let parsed = wrong.into_result(id.zip(name))?;
    Ok(parsed.expect("missing fields are violations"))
}

fn show(state: &State, network: &Network) -> v1::Network {
    v1::Network {
        id: network.id.to_string(),
        name: network.name.to_string(),
        version: network.version,
        created_at: network.created_at.0,
        labels: network.labels.clone(),
        internal: network.internal,
        services: state.network_users(&network.name),
    }
}

#[tonic::async_trait]
impl networks_server::Networks for Api {
    async fn create(
        &self,
        request: Request<v1::CreateNetworkRequest>,
    ) -> Result<Response<v1::Network>, Status> {
        let caller = AuditedCall::of(&request);
        let (id, name) = parse(request.get_ref()).map_err(status_of)?;
        caller.named(ObjectKind::Network, name.as_str());
        let v1::CreateNetworkRequest { labels, internal, .. } = request.into_inner();
        let command = Command::CreateNetwork { id, name, labels, internal, at: self.clock.now() };
        let created: Arc<Network> = self.write(command).await?;
        caller.identified(ObjectKind::Network, id, &created.name, created.version);
        tracing::info!(%caller, network = %id, name = %created.name, "network created");
        Ok(Response::new(show(&self.store.read().state, &created)))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Network>, Status> {
        let published = self.read(&request).await?;
        let network = published.state.find_network(&request.get_ref().reference).map_err(status_of)?;
        Ok(Response::new(show(&published.state, network)))
    }

    async fn list(
        &self,
        request: Request<v1::ListNetworksRequest>,
    ) -> Result<Response<v1::ListNetworksResponse>, Status> {
        let v1::ListNetworksRequest { page_size, page_token } = request.get_ref();
        let page = Page::<NetworkName>::parse(*page_size, page_token)?;
        let published = self.read(&request).await?;
        let state = &published.state;
        let later = state.networks_after(page.after.as_ref());
        let (networks, next_page_token) = page.cut(later, |network| network.name.clone());
        let networks = networks.into_iter().map(|network| show(state, network)).collect();
        Ok(Response::new(v1::ListNetworksResponse { networks, next_page_token }))
    }

    async fn remove(&self, request: Request<v1::Reference>) -> Result<Response<v1::Network>, Status> {
        let caller = AuditedCall::of(&request);
        caller.named(ObjectKind::Network, &request.get_ref().reference);
        let published = self.read_latest().await?;
        let id = published.state.find_network(&request.get_ref().reference).map_err(status_of)?.id;
        let removed: Arc<Network> = self.write(Command::RemoveNetwork { id, at: self.clock.now() }).await?;
        caller.identified(ObjectKind::Network, id, &removed.name, removed.version);
        tracing::info!(%caller, network = %id, name = %removed.name, "network removed");
        Ok(Response::new(show(&published.state, &removed)))
    }
}
