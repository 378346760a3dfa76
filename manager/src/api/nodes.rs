//! Nodes: read.

use tonic::{Request, Response, Status};
use warren_proto::v1::{self, nodes_server};

use super::Api;
use super::paging::Page;
use super::problem::status_of;

#[tonic::async_trait]
impl nodes_server::Nodes for Api {
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Node>, Status> {
        let published = self.store.read();
        let node = published.state.find_node(&request.get_ref().reference).map_err(status_of)?;
        Ok(Response::new(self.show_node(&published.state, node)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let page = Page::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.store.read();
        let all = published.state.nodes_after(page.after.as_ref());
        let (nodes, next_page_token) = page.cut(all, |node| node.name.clone());
        let nodes = nodes.iter().map(|node| self.show_node(&published.state, node)).collect();
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token }))
    }
}
