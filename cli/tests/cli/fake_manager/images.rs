//! Images. Archives say `good`; the node `full` takes nothing; the node `away` does not answer.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use warren_proto::{Problem, v1};

use super::{FakeApi, ResponseStream};

fn image(reference: &str, digest: &str) -> v1::ImportedImage {
    v1::ImportedImage { reference: reference.into(), digest: digest.into(), size_bytes: 4 }
}

/// The nodes that are asked, or the one that is there.
fn nodes(mut asked: Vec<String>) -> Vec<String> {
    if asked.is_empty() {
        asked.push("node-1".into());
    }
    asked
}

/// Each node's one image, or why there is none.
fn images(asked: Vec<String>) -> Vec<v1::NodeImages> {
    let of = |node: String| {
        let failed = if node == "away" { "it did not answer in time".to_owned() } else { String::new() };
        let image = v1::ImageInfo {
            reference: "web:1".into(),
            digest: "sha256:1".into(),
            size_bytes: 4,
            created_at: None,
            last_used_at: None,
            tasks: 2,
        };
        let images = if failed.is_empty() { vec![image] } else { Vec::new() };
        v1::NodeImages { node, images, error: failed }
    };
    nodes(asked).into_iter().map(of).collect()
}

#[tonic::async_trait]
impl v1::images_server::Images for FakeApi {
    type ImportStream = ResponseStream<v1::ImportProgress>;
    type CopyStream = ResponseStream<v1::ImportProgress>;
    type PullStream = ResponseStream<v1::PullProgress>;

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        use v1::import_progress::Event;
        use v1::import_request::Message;
        let (sender, receiver) = mpsc::channel(8);
        let mut messages = request.into_inner();
        tokio::spawn(async move {
            let (mut asked, mut archive) = (Vec::new(), Vec::new());
            while let Ok(Some(v1::ImportRequest { message: Some(message) })) = messages.message().await {
                match message {
                    Message::Target(target) => asked = target.nodes,
                    Message::Chunk(chunk) => archive.extend_from_slice(&chunk),
                }
            }
            for node in nodes(asked) {
                let tell = |event| Ok(v1::ImportProgress { node: node.clone(), event: Some(event) });
                let events = if archive != b"good" {
                    vec![Event::Error("this is no image archive".into())]
                } else if node == "full" {
                    vec![Event::Error("the disk is full".into())]
                } else {
                    let imported = image("web:1", "sha256:1");
                    vec![Event::ReceivedBytes(4), Event::Imported(imported), Event::Done(v1::NodeDone {})]
                };
                for event in events {
                    sender.send(tell(event)).await.unwrap();
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    /// The image is on `node-1`.
    async fn copy(
        &self,
        request: Request<v1::CopyImageRequest>,
    ) -> Result<Response<Self::CopyStream>, Status> {
        use v1::import_progress::Event;
        let v1::CopyImageRequest { reference, to, from } = request.into_inner();
        if !from.is_empty() && from != "node-1" {
            let message = format!("{from} does not have the image {reference}");
            return Err(Problem::new(Code::NotFound, "IMAGE_NOT_FOUND", message).into());
        }
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(async move {
            for node in to.into_iter().filter(|node| node != "node-1") {
                let events = match node.as_str() {
                    "full" => vec![Event::Error("the disk is full".into())],
                    _ => {
                        let copied = image(&reference, "sha256:1");
                        vec![Event::ReceivedBytes(4), Event::Imported(copied), Event::Done(v1::NodeDone {})]
                    }
                };
                for event in events {
                    let progress = v1::ImportProgress { node: node.clone(), event: Some(event) };
                    sender.send(Ok(progress)).await.unwrap();
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    /// Only agents call this.
    async fn find_holders(
        &self,
        _: Request<v1::FindHoldersRequest>,
    ) -> Result<Response<v1::FindHoldersResponse>, Status> {
        Err(Status::permission_denied("only a node's agent may call this"))
    }

    /// Asked for always, the registry has something newer.
    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        use v1::pull_progress::Event;
        let v1::PullRequest { reference, nodes: asked, always } = request.into_inner();
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(async move {
            let digest = if always { "sha256:2" } else { "sha256:1" };
            for node in nodes(asked) {
                let end = match node.as_str() {
                    "full" => Event::Error("the disk is full".into()),
                    _ => Event::Pulled(image(&reference, digest)),
                };
                for event in [Event::Progress("1 of 2 layers, 2 of 4 B".into()), end] {
                    let reported = v1::PullProgress { node: node.clone(), event: Some(event) };
                    sender.send(Ok(reported)).await.unwrap();
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        Ok(Response::new(v1::ListImagesResponse { nodes: images(request.into_inner().nodes) }))
    }

    async fn prune(
        &self,
        request: Request<v1::PruneImagesRequest>,
    ) -> Result<Response<v1::PruneImagesResponse>, Status> {
        let request = request.into_inner();
        self.0.lock().unwrap().prunes_asked.push(request.clone());
        Ok(Response::new(v1::PruneImagesResponse { nodes: images(request.nodes) }))
    }

    async fn resolve(
        &self,
        _: Request<v1::ResolveImageRequest>,
    ) -> Result<Response<v1::ResolvedImage>, Status> {
        Err(Status::unimplemented("no command asks for it"))
    }
}
