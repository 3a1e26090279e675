//! The log.

use super::answer::{Answer, number};
use super::decode;
use super::image::Image;
use serde_json::{Value, json};
use syncline_device::block_on;
use syncline_format::batch::{BatchHeader, Record, Records, unpack_checksums};
use syncline_log::{Scan, Window, payload_of, scan};

/// The most records of a batch that are shown.
const RECORDS_MAX: usize = 10_000;

fn scanned(image: &Image) -> Result<Scan, String> {
    let superblock = image.superblock()?;
    let found = scan(&image.device, superblock.geometry, superblock.epoch, superblock.log, superblock.clean);
    block_on(found).map_err(|error| error.to_string())
}

fn header(batch: &BatchHeader) -> Value {
    json!({ "number": batch.seq, "block": batch.addr, "payload_bytes": batch.payload_bytes,
        "generation": batch.generation, "durable": batch.durable_seq, "operation": batch.op_seq,
        "prev": decode::crc(batch.prev), "next": batch.next })
}

/// The batches after the last checkpoint.
pub fn log(image: &Image) -> Answer {
    let superblock = image.superblock()?;
    let found = scanned(image)?;
    let contradiction = found.contradiction.map(|later| {
        format!(
            "batch {} at block {} says that batch {} is durable, which is missing",
            later.seq, later.addr, later.durable_seq
        )
    });
    Ok(json!({
        "starts": { "number": superblock.log.seq, "block": superblock.log.addr,
            "segment": decode::run(superblock.log.segment), "prev": decode::crc(superblock.log.prev) },
        "ends": { "number": found.end.seq, "block": found.end.addr, "segment": decode::run(found.end.segment) },
        "known_durable": found.durable_seq,
        "damage": contradiction,
        "copies_used": found.copies_used.iter().map(|lead| lead.seq).collect::<Vec<_>>(),
        "batches": found.batches.len(),
        "list": found.batches.iter().map(header).collect::<Vec<_>>(),
    }))
}

/// One batch.
pub fn batch(image: &Image, arguments: &[&str]) -> Answer {
    let wanted = number(arguments[0])?;
    let found = scanned(image)?;
    let batch = found.batches.iter().find(|batch| batch.seq == wanted);
    let batch = batch
        .ok_or_else(|| format!("there is no batch {wanted} after the last checkpoint; 'log' lists them"))?;
    let payload = block_on(payload_of(&mut Window::new(image.device.clone()), batch))
        .map_err(|error| error.to_string())?;
    let records = Records::new(&payload, image.geometry()?).take(RECORDS_MAX);
    let records: Vec<Value> = records
        .map(|record| record.map_or_else(|error| json!({ "error": error.to_string() }), told))
        .collect();
    let mut answer = header(batch);
    answer["segment"] = decode::run(batch.segment).into();
    answer["next_segment"] = decode::run(batch.next_segment).into();
    answer["objects_delta"] = batch.objects_delta.into();
    answer["list"] = records.into();
    Ok(answer)
}

fn told(record: Record<'_>) -> Value {
    match record {
        Record::Put(key, value) => {
            let mut item = decode::item(key, value);
            item["record"] = "put".into();
            item
        }
        Record::Delete(key) => json!({ "record": "delete", "key": decode::key(key) }),
        Record::Name(run, checksums) => {
            let checksums: Vec<String> = unpack_checksums(checksums).map(decode::crc).collect();
            json!({ "record": "name", "blocks": decode::run(run), "checksums": checksums.join(" ") })
        }
        Record::Free(run) => json!({ "record": "free", "blocks": decode::run(run) }),
        Record::Void => json!({ "record": "void" }),
    }
}
