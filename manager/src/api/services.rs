//! Services: create, read, scale, remove.

use tonic::{Request, Response, Status};
use warren_core::{Command, State};
use warren_proto::convert::replicas;
use warren_proto::v1::{self, services_server};
use warren_types::{ServiceId, ServiceSpec};

use super::Api;
use super::paging::Page;
use super::problem::status_of;

impl Api {
    fn service_after(&self, id: ServiceId) -> Result<Response<v1::Service>, Status> {
        let published = self.store.read();
        let service = published.state.find_service(&id.to_string()).map_err(status_of)?;
        Ok(Response::new(self.show_service(&published.state, service)))
    }

    fn service_id(&self, state: &State, reference: &str) -> Result<ServiceId, Status> {
        state.find_service(reference).map(|service| service.id).map_err(status_of)
    }
}

#[tonic::async_trait]
impl services_server::Services for Api {
    async fn create(
        &self,
        request: Request<v1::CreateServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let (id, spec): (ServiceId, ServiceSpec) = request.into_inner().try_into().map_err(status_of)?;
        let command = Command::CreateService { id, spec, at: self.clock.now() };
        self.store.propose(command).await.map_err(status_of)?;
        self.service_after(id)
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Service>, Status> {
        let published = self.store.read();
        let service = published.state.find_service(&request.get_ref().reference).map_err(status_of)?;
        Ok(Response::new(self.show_service(&published.state, service)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        let page = Page::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.store.read();
        let all = published.state.services_after(page.after.as_ref());
        let (services, next_page_token) = page.cut(all, |service| service.spec.name.clone());
        let services = services.iter().map(|service| self.show_service(&published.state, service)).collect();
        Ok(Response::new(v1::ListServicesResponse { services, next_page_token }))
    }

    async fn scale(
        &self,
        request: Request<v1::ScaleServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let request = request.into_inner();
        let replicas = replicas(request.replicas).map_err(status_of)?;
        let id = self.service_id(&self.store.read().state, &request.reference)?;
        let command = Command::ScaleService { id, version: request.version, replicas, at: self.clock.now() };
        self.store.propose(command).await.map_err(status_of)?;
        self.service_after(id)
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveServiceRequest>,
    ) -> Result<Response<v1::Service>, Status> {
        let request = request.into_inner();
        let published = self.store.read();
        let service = published.state.find_service(&request.reference).map_err(status_of)?;
        let (id, version) = (service.id, request.version);
        let command = Command::RemoveService { id, version, at: self.clock.now() };
        self.store.propose(command).await.map_err(status_of)?;
        let after = self.store.read();
        Ok(Response::new(match after.state.service(&id) {
            Some(service) => self.show_service(&after.state, service),
            // A service without tasks may be gone by now, so it is shown as it was.
            None => v1::Service { removing: true, ..self.show_service(&published.state, service) },
        }))
    }
}
