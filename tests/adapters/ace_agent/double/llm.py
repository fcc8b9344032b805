"""One call of a model, repeated while its server is away."""

import time

from logger import log_llm_call


def timed_llm_call(
    client,
    api_provider,
    model,
    prompt,
    role,
    call_id,
    max_tokens=4096,
    log_dir=None,
    sleep_seconds=15,
    retries_on_timeout=1000,
    attempt=1,
    use_json_mode=False,
):
    request = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0.0}
    request["max_completion_tokens" if api_provider == "openai" else "max_tokens"] = max_tokens
    if use_json_mode:
        request["response_format"] = {"type": "json_object"}
    while True:
        try:
            answer = client.chat.completions.create(**request)
            content = answer.choices[0].message.content
            break
        except Exception as error:
            again = any(word in str(error).lower() for word in ("connection", "timed out", "timeout", "rate limit"))
            if not again or attempt >= retries_on_timeout:
                raise
            attempt += 1
            time.sleep(sleep_seconds)
    info = {"role": role, "call_id": call_id, "model": model, "prompt": prompt, "response": content}
    if log_dir:
        log_llm_call(log_dir, info)
    return content, info
