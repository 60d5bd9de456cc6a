"""`langchain-huggingface`: text and chat, whole and streamed (clients.md A4)."""

import os

from langchain_core.messages import HumanMessage
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint

llm = HuggingFaceEndpoint(
    endpoint_url=os.environ["URL"], max_new_tokens=12, do_sample=False, seed=3, stop_sequences=["zzz"], huggingfacehub_api_token="-"
)
text = llm.invoke("What is deep learning?")
assert isinstance(text, str)
assert "".join(llm.stream("What is deep learning?")).removesuffix("</s>") == text
chat = ChatHuggingFace(llm=llm, model_id=os.environ["MODEL"])
answer = chat.invoke([HumanMessage("What is deep learning?")])
assert answer.response_metadata["finish_reason"] in ("length", "stop")
assert answer.usage_metadata["output_tokens"] == 12 or answer.response_metadata["finish_reason"] == "stop"
assert sum(len(chunk.content) for chunk in chat.stream([HumanMessage("What is deep learning?")])) >= 0
