//! OpenAI's dialect: the same purchases, said in other words.

mod chats;
mod refusals;
mod streams;
mod videos;

const CHATS: &str = "/v1/chat/completions";
const VIDEOS: &str = "/v1/videos";
