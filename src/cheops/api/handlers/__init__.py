"""The handlers of the endpoints, one module for each subject.

A handler gets an `ApiRequest` with everything checked (right, path, parameters; the body when it wants it) and returns
the model that its endpoint declares:

    @handles(GET_MATRIX)
    async def get_matrix(request: ApiRequest) -> MatrixView:
        return matrix_in_force(await load_resource(request.node, request.id))

Handlers load what is needed and wait for other sites; `cheops.api.views`, which is pure, turns a state into words and
models.
"""
