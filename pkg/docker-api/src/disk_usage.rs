//! `/system/df`.

use serde_json::json;
use warren_client::Client;

use crate::response::{Answer, ok};
use crate::{containers, images, volumes};

/// `GET /system/df`: sizes of containers are not measured, and nothing is built.
pub async fn read(client: &Client) -> Answer {
    let (images, layers_size) = images::all(client).await?;
    ok(&json!({
        "LayersSize": layers_size, "Images": images, "Containers": containers::all(client).await?,
        "Volumes": volumes::all(client).await?, "BuildCache": [], "BuilderSize": 0,
    }))
}
